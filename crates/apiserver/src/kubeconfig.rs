//! The file by which `kubectl` finds a cluster.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use yaml::{Kind, Node};

use crate::access::{Access, AccessError, Credential};

/// Keys of a user that are not supported. Each would change who the client is.
const USER: [&str; 8] = [
    "exec",
    "auth-provider",
    "username",
    "password",
    "as",
    "as-uid",
    "as-groups",
    "as-user-extra",
];
/// Keys of a cluster that are not supported.
const CLUSTER: [&str; 3] = ["insecure-skip-tls-verify", "proxy-url", "tls-server-name"];

/// What a context says: how to reach the cluster, and the namespace of commands that name none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// Address and credentials.
    pub access: Access,
    /// The namespace; `None` if the context has none.
    pub namespace: Option<String>,
}

/// Reads a context, by default the current one. Of several files the first one that says something counts, as for
/// `kubectl`; files that do not exist are skipped if there are others.
pub(crate) fn read(paths: &[PathBuf], context: Option<&str>) -> Result<Context, AccessError> {
    let mut read = Vec::new();
    for path in paths {
        match root(path) {
            Err(AccessError::Read { source, .. })
                if paths.len() > 1 && source.kind() == std::io::ErrorKind::NotFound => {}
            found => read.push((path.as_path(), found?)),
        }
    }
    let files: Vec<File<'_>> = read
        .iter()
        .map(|(path, root)| File {
            path,
            folder: path.parent().unwrap_or(Path::new(".")),
            root,
        })
        .collect();
    let Some(first) = files.first() else {
        return Err(AccessError::Kubeconfig {
            path: paths.first().cloned().unwrap_or_default(),
            problem: "neither it nor another file of the list exists".to_owned(),
        });
    };
    let current = match context {
        Some(name) => name.to_owned(),
        None => {
            let says = |file: &&File<'_>| file.text(file.root, "current-context").is_ok();
            let file = files.iter().find(says).unwrap_or(first);
            file.text(file.root, "current-context")?
        }
    };
    let (of_context, context) = named(&files, "contexts", "context", &current)?;
    let name = of_context.text(context, "cluster")?;
    let (of_cluster, cluster) = named(&files, "clusters", "cluster", &name)?;
    let name = of_context.text(context, "user")?;
    let (of_user, user) = named(&files, "users", "user", &name)?;
    Ok(Context {
        access: access((of_cluster, cluster), (of_user, user))?,
        namespace: of_context.text(context, "namespace").ok(),
    })
}

fn access(
    (of_cluster, cluster): (&File<'_>, &Node),
    (of_user, user): (&File<'_>, &Node),
) -> Result<Access, AccessError> {
    of_cluster.refuse(cluster, &CLUSTER)?;
    of_user.refuse(user, &USER)?;
    let token = match get(user, "token").and_then(Node::scalar) {
        Some(token) => Some(Credential::Inline {
            content: token.text().as_bytes().to_vec(),
            within: of_user.path.to_owned(),
        }),
        None => of_user.file(user, "tokenFile"),
    };
    let certificate = of_user.credential(user, "client-certificate")?;
    let key = of_user.credential(user, "client-key")?;
    if certificate.is_some() != key.is_some() {
        return Err(of_user.wrong("a client certificate needs its key, and a key its certificate"));
    }
    Ok(Access {
        server: of_cluster.text(cluster, "server")?,
        authority: of_cluster.credential(cluster, "certificate-authority")?,
        token,
        client: certificate.zip(key),
    })
}

/// The one document of a file.
fn root(path: &Path) -> Result<Node, AccessError> {
    let wrong = |problem| AccessError::Kubeconfig {
        path: path.to_owned(),
        problem,
    };
    let text = crate::access::read(&path.to_owned())?;
    let text =
        String::from_utf8(text).map_err(|error| wrong(format!("it is not UTF-8: {error}")))?;
    let name: Arc<str> = path.display().to_string().into();
    let (mut documents, problem) = yaml::read(&name, &text);
    if let Some(problem) = problem {
        let (line, message) = (problem.location.line, problem.message);
        return Err(wrong(format!("line {line}: {message}")));
    }
    match (documents.pop(), documents.len()) {
        (Some(root), 0) => Ok(root),
        (None, _) => Err(wrong("it is empty".to_owned())),
        (_, more) => Err(wrong(format!(
            "it has {} documents, and has to have one",
            more + 1
        ))),
    }
}

/// The part `key` of the item of a list that has a name, and the file that it is in.
fn named<'f, 'n>(
    files: &'f [File<'n>],
    list: &str,
    key: &str,
    name: &str,
) -> Result<(&'f File<'n>, &'n Node), AccessError> {
    let mut found = files.iter().map(|file| (file, file.named(list, key, name)));
    let first = found.find_map(|(file, node)| Some((file, node?)));
    first.ok_or_else(|| files[0].wrong(format!("`{list}` has no `{key}` with the name `{name}`")))
}

struct File<'a> {
    path: &'a Path,
    /// Relative paths are meant from here.
    folder: &'a Path,
    root: &'a Node,
}

impl<'a> File<'a> {
    fn wrong(&self, problem: impl Into<String>) -> AccessError {
        AccessError::Kubeconfig {
            path: self.path.to_owned(),
            problem: problem.into(),
        }
    }

    fn text(&self, node: &Node, key: &str) -> Result<String, AccessError> {
        let text = get(node, key)
            .and_then(Node::scalar)
            .map(|text| text.text().to_owned());
        let text = text.filter(|text| !text.is_empty());
        let line = node.location.line;
        text.ok_or_else(|| self.wrong(format!("line {line}: `{key}` is missing, or is no text")))
    }

    /// The part `key` of the item of a list that has a name.
    fn named(&self, list: &str, key: &str, name: &str) -> Option<&'a Node> {
        let items = match get(self.root, list).map(|list| &list.kind) {
            Some(Kind::Sequence(items)) => items.as_slice(),
            _ => &[],
        };
        let is_named = |item: &&Node| {
            let own = get(item, "name").and_then(Node::scalar);
            own.is_some_and(|own| own.text() == name)
        };
        items.iter().find(is_named).and_then(|item| get(item, key))
    }

    fn refuse(&self, node: &Node, keys: &[&str]) -> Result<(), AccessError> {
        let given = keys
            .iter()
            .find(|key| get(node, key).is_some_and(|value| !value.is_null()));
        match given {
            None => Ok(()),
            Some(key) => Err(self.wrong(format!(
                "`{key}` is not supported: use a token or a client certificate"
            ))),
        }
    }

    fn file(&self, node: &Node, key: &str) -> Option<Credential> {
        let text = get(node, key)?.scalar()?.text().to_owned();
        let path: PathBuf = self.folder.join(text);
        Some(Credential::File(path))
    }

    /// A file by `key`, or its content by `key-data`, which wins.
    fn credential(&self, node: &Node, key: &str) -> Result<Option<Credential>, AccessError> {
        let data = format!("{key}-data");
        let Some(text) = get(node, &data).and_then(Node::scalar) else {
            return Ok(self.file(node, key));
        };
        let content = STANDARD
            .decode(text.text().trim())
            .map_err(|error| self.wrong(format!("`{data}` is no base64: {error}")))?;
        Ok(Some(Credential::Inline {
            content,
            within: self.path.to_owned(),
        }))
    }
}

fn get<'n>(node: &'n Node, key: &str) -> Option<&'n Node> {
    let Kind::Mapping(pairs) = &node.kind else {
        return None;
    };
    let is_key = |own: &Node| own.scalar().is_some_and(|own| own.text() == key);
    pairs
        .iter()
        .find(|(own, _)| is_key(own))
        .map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(cluster: &str, user: &str) -> Result<Access, String> {
        let folder = tempfile::tempdir().expect("there are temporary folders");
        let path = folder.path().join("config");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: two\ncontexts:\n- {{name: one, context: {{cluster: x, user: \
             x}}}}\n- {{name: two, context: {{cluster: c, user: u}}}}\nclusters:\n- name: c\n  cluster: \
             {{server: 'https://192.0.2.1:6443', {cluster}}}\nusers:\n- name: u\n  user: {{{user}}}\n"
        );
        std::fs::write(&path, text).expect("the folder is ours");
        read(&[path], None)
            .map(|context| context.access)
            .map_err(|error| {
                error
                    .to_string()
                    .replace(&folder.path().display().to_string(), "")
            })
    }

    #[test]
    fn the_current_context_gives_server_authority_and_who_the_client_is() {
        let access = read_text("certificate-authority-data: YWJj", "tokenFile: t").unwrap();
        assert_eq!(access.server, "https://192.0.2.1:6443");
        assert_eq!(access.authority.unwrap().read().unwrap(), b"abc");
        let Some(Credential::File(path)) = access.token else {
            panic!("it is a file");
        };
        assert!(
            path.is_absolute() && path.ends_with("t"),
            "{}",
            path.display()
        );
        let by_key = read_text(
            "certificate-authority: ca",
            "client-certificate-data: YQ==, client-key: k",
        )
        .unwrap();
        assert!(by_key.token.is_none());
        assert_eq!(by_key.client.unwrap().0.read().unwrap(), b"a");
        let inline = read_text("certificate-authority: ca", "token: secret").unwrap();
        assert!(!format!("{inline:?}").contains("secret"), "{inline:?}");
        assert_eq!(inline.token.unwrap().read().unwrap(), b"secret");
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        for (cluster, user, expected) in [
            (
                "insecure-skip-tls-verify: true",
                "token: a",
                "`insecure-skip-tls-verify` is not supported",
            ),
            ("proxy-url: x", "token: a", "`proxy-url` is not supported"),
            ("", "exec: {command: x}", "`exec` is not supported"),
            (
                "",
                "username: a, password: b",
                "`username` is not supported",
            ),
            ("", "client-certificate: a", "needs its key"),
            (
                "certificate-authority-data: '!'",
                "token: a",
                "is no base64",
            ),
        ] {
            let error = read_text(cluster, user).unwrap_err();
            assert!(
                error.contains(expected) && error.contains("/config"),
                "{error}"
            );
        }
    }

    #[test]
    fn of_several_files_the_first_that_says_something_counts() {
        let folder = tempfile::tempdir().expect("there are temporary folders");
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name).join("config");
            std::fs::create_dir(folder.path().join(name)).expect("the folder is ours");
            std::fs::write(&path, text).expect("the folder is ours");
            path
        };
        let one = write(
            "a",
            "current-context: two\nusers: [{name: u, user: {tokenFile: t}}]\n",
        );
        let other = write(
            "b",
            "current-context: one\ncontexts:\n- {name: two, context: {cluster: c, user: u, namespace: n}}\n- {name: one, \
             context: {cluster: c, user: v}}\nclusters: [{name: c, cluster: {server: 'https://192.0.2.1', \
             certificate-authority: ca}}]\nusers: [{name: u, user: {token: x}}, {name: v, user: {token: y}}]\n",
        );
        let missing = folder.path().join("none");
        let files = [one.clone(), missing.clone(), other.clone()];
        let found = read(&files, None).unwrap();
        assert_eq!(found.namespace.as_deref(), Some("n"));
        // Paths are meant from the file that they are in.
        let token = Some(Credential::File(folder.path().join("a/t")));
        assert_eq!(found.access.token, token);
        let authority = Some(Credential::File(folder.path().join("b/ca")));
        assert_eq!(found.access.authority, authority);
        let chosen = read(&files, Some("one")).unwrap();
        assert_eq!(chosen.access.token.unwrap().read().unwrap(), b"y");
        assert_eq!(chosen.namespace, None);
        let error = read(&files, Some("three")).unwrap_err().to_string();
        assert!(error.contains("the name `three`"), "{error}");
        let error = read(&[missing.clone(), missing], None).unwrap_err();
        assert!(error.to_string().contains("exists"), "{error}");
    }
}
