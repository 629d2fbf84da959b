//! Notices of third parties: the licences of everything that is linked into the program.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use spdx::{Expression, ParseMode};

use super::Build;
use super::linked::Component;

/// Licences of packages of cargo that the program may be given away under. What [`super::native`] lists is chosen there.
const ALLOWED: [&str; 9] = [
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];
/// The licence whose text this repository has, for packages that come without a text.
const OURS: (&str, &str) = ("Apache-2.0", include_str!("../../../LICENSE"));

const HEAD: &str = "\
Software of others in tollgate
==============================

This program contains the software that is listed here, with its licences. A number in brackets is a text below the list.

tollgate's own sources are public, so the libraries that are under the GNU Lesser General Public License can be
replaced by others: install another version and run `make static`.
";
const RULE: &str =
    "\n--------------------------------------------------------------------------------\n\n";

/// Writes the notices for a program to a file.
pub(super) fn write(root: &Path, program: &Path, file: &Path) -> Result<()> {
    let components = Build::of(program)?.components(root)?;
    fs::write(file, render(&components)?)
        .with_context(|| format!("cannot write {}", file.display()))
}

/// Formats the list of components and, each once, the texts of their licences.
fn render(components: &[Component]) -> Result<String> {
    let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
    let mut all: Vec<String> = Vec::new();
    let mut list = String::new();
    for component in components {
        let expression = expression(component)?;
        let mut marks = String::new();
        for text in texts(component)? {
            // The same text is often broken into lines at other places.
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let number = *numbers.entry(words).or_insert_with(|| {
                all.push(text);
                all.len()
            });
            write!(marks, " [{number}]")?;
        }
        writeln!(list, "\n{} {}", component.name, component.version)?;
        writeln!(list, "    {expression}{marks}")?;
        if let Some(sources) = &component.sources {
            writeln!(list, "    {sources}")?;
        }
    }
    let mut out = format!("{HEAD}{list}");
    for (index, text) in all.iter().enumerate() {
        write!(
            out,
            "{RULE}[{}]\n\n{}\n",
            index + 1,
            text.trim_matches('\n')
        )?;
    }
    Ok(out)
}

/// Returns the licence of a component in SPDX's present spelling.
pub(super) fn expression(component: &Component) -> Result<String> {
    let Component {
        name,
        version,
        license,
        ..
    } = component;
    let license = license.as_ref();
    let license = license.with_context(|| format!("{name} {version} names no licence"))?;
    let canonical = Expression::canonicalize(license);
    let canonical = canonical.map_err(anyhow::Error::from);
    let canonical =
        canonical.with_context(|| format!("{name} {version}: `{license}` is no licence"))?;
    Ok(canonical.unwrap_or_else(|| license.clone()))
}

/// Returns the texts of a component's licence.
///
/// # Errors
/// If its licence is unknown or not allowed, or if there is no text.
pub(super) fn texts(component: &Component) -> Result<Vec<String>> {
    let Component { name, version, .. } = component;
    let license = expression(component)?;
    let parsed = Expression::parse_mode(&license, ParseMode::STRICT)
        .map_err(anyhow::Error::from)
        .with_context(|| format!("{name} {version}: `{license}` is no licence"))?;
    let satisfied_by = |allowed: &[&str]| {
        parsed.evaluate(|wanted| {
            let id = wanted.license.id();
            id.is_some_and(|id| allowed.contains(&id.name))
        })
    };
    if component.purl.starts_with("pkg:cargo/") {
        ensure!(
            satisfied_by(&ALLOWED),
            "{name} {version} is under `{license}`, which is not allowed"
        );
    }
    if !component.texts.is_empty() {
        return component.texts.iter().map(|path| read(path)).collect();
    }
    if !satisfied_by(&[OURS.0]) {
        bail!("{name} {version} comes without the text of its licence, `{license}`");
    }
    Ok(vec![OURS.1.to_owned()])
}

/// Reads a text, without the marks of HTML.
fn read(path: &Path) -> Result<String> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    // Some old copyright files have names in Latin-1.
    let text = String::from_utf8_lossy(&bytes).replace('\r', "");
    let is_html = path
        .extension()
        .is_some_and(|extension| extension == "html");
    Ok(if is_html { without_marks(&text) } else { text })
}

fn without_marks(html: &str) -> String {
    let body = html.split_once("<body>").map_or(html, |(_, body)| body);
    let mut out = String::new();
    for part in body.split('<') {
        // The part before the first mark has no end of one.
        out.push_str(part.split_once('>').map_or(part, |(_, text)| text));
    }
    for (escaped, plain) in [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&#x27;", "'"),
        ("&amp;", "&"),
    ] {
        out = out.replace(escaped, plain);
    }
    out
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn component(license: Option<&str>, texts: &[PathBuf]) -> Component {
        Component {
            name: "a".to_owned(),
            version: "1.0.0".to_owned(),
            purl: "pkg:cargo/a@1.0.0".to_owned(),
            license: license.map(str::to_owned),
            sources: None,
            checksum: None,
            uses: Vec::new(),
            texts: texts.to_vec(),
            is_direct: true,
        }
    }

    #[test]
    fn a_licence_that_is_missing_unknown_or_not_allowed_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let text = folder.path().join("LICENSE");
        fs::write(&text, "Do as you like.\n").expect("it is ours");
        for (license, message) in [
            (None, "a 1.0.0 names no licence"),
            (Some("Nice"), "a 1.0.0: `Nice` is no licence"),
            (
                Some("GPL-3.0-only"),
                "a 1.0.0 is under `GPL-3.0-only`, which is not allowed",
            ),
            (
                Some("MIT AND AGPL-3.0-only"),
                "a 1.0.0 is under `MIT AND AGPL-3.0-only`, which is not allowed",
            ),
        ] {
            let error = texts(&component(license, std::slice::from_ref(&text))).expect_err(message);
            assert_eq!(error.to_string(), message);
        }
        for license in ["MIT", "MIT/GPL-2.0-only", "(MIT OR AGPL-3.0-only) AND ISC"] {
            let texts = texts(&component(Some(license), std::slice::from_ref(&text)));
            assert_eq!(texts.expect(license), ["Do as you like.\n"]);
        }
    }

    #[test]
    fn a_package_without_a_text_gets_ours_or_is_an_error() {
        let texts_of = |license| texts(&component(Some(license), &[]));
        assert_eq!(texts_of("MIT OR Apache-2.0").expect("ours fits"), [OURS.1]);
        let error = texts_of("MIT").expect_err("there is no text of MIT");
        let message = "a 1.0.0 comes without the text of its licence, `MIT`";
        assert_eq!(error.to_string(), message);
    }

    #[test]
    fn a_text_that_several_packages_have_is_printed_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let [first, same, other] = ["first", "same", "other"].map(|name| folder.path().join(name));
        for (path, text) in [
            (&first, "one two\n"),
            (&same, "one\n\ntwo"),
            (&other, "three"),
        ] {
            fs::write(path, text).expect("it is ours");
        }
        let components = [&[first][..], &[same, other]].map(|texts| component(Some("MIT"), texts));
        let notices = render(&components).expect("they are complete");
        assert!(
            notices.contains("\na 1.0.0\n    MIT [1]\n\na 1.0.0\n    MIT [1] [2]\n"),
            "{notices}"
        );
        assert!(
            notices.contains("[1]\n\none two\n") && notices.contains("[2]\n\nthree\n"),
            "{notices}"
        );
        assert!(!notices.contains("[3]"), "{notices}");
    }

    #[test]
    fn a_page_becomes_a_text() {
        let page = "<html><title>no</title><body><p>a &lt;b@c.example&gt; &amp; <b>d</b></p></body></html>";
        assert_eq!(without_marks(page), "a <b@c.example> & d");
    }
}
