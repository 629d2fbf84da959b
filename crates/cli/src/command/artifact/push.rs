//! `tollgate artifact push`: publishes a rule file.

use std::path::{Path, PathBuf};

use artifact::{
    ArtifactError, Candidate, Config, Dependency, Layout, NameAndVersion, Package, Reference,
    Remote, SigningKey, Sink, TestFile, Wanted,
};
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::{terminal, text_file};
use serde_json::json;

use super::args::Push;
use super::{read, remote_options, wanted};

pub(super) fn execute(args: &Push) -> Outcome {
    let Wanted::Reference(reference) = wanted(&args.artifact)? else {
        let message = format!(
            "cannot publish as `{}`: it names no registry",
            args.artifact
        );
        return Err(Failure::new(Exit::BadInput, message).help("write REGISTRY/REPOSITORY:TAG"));
    };
    let package = package(args, &reference)?;
    check(&package, &args.test)?;
    let key = match &args.sign_key {
        None => None,
        Some(path) => Some(SigningKey::from_pem(&read(path)?).map_err(|error| {
            let message = format!("{}: {error}", path.display());
            Failure::new(Exit::BadInput, message).help(error.help())
        })?),
    };
    let sink = sink(args, &reference).map_err(|error| failed(&error))?;
    let pushed = artifact::push(&*sink, &reference, &package, &args.add_tag, key.as_ref());
    let pushed = pushed.map_err(|error| failed(&error))?;
    let key = key.map(|key| key.public().fingerprint());
    if args.json {
        return terminal::print(&format!(
            "{}\n",
            json!({
                "reference": reference.to_string(),
                "digest": pushed.digest.as_str(),
                "layer_digest": pushed.layer_digest.as_str(),
                "signed_by": key.as_ref().map(|key| key.as_str()),
            })
        ));
    }
    let signed = match key {
        Some(key) => format!("signed by {key}"),
        None => "not signed; sign it with `cosign sign --key`".to_owned(),
    };
    terminal::print(&format!(
        "published {reference}\n  {}\n  {signed}\n",
        pushed.digest
    ))
}

/// Returns the failure of an error, with the next step of who publishes.
fn failed(error: &ArtifactError) -> Failure {
    super::failed(error).help(error.help_to_publish())
}

fn sink(args: &Push, reference: &Reference) -> Result<Box<dyn Sink>, ArtifactError> {
    if let Some(folder) = &args.layout {
        return Ok(Box::new(Layout::create(folder)?));
    }
    let options = remote_options(&args.access).map_err(|failure| ArtifactError::Form {
        what: "the file of credentials",
        problem: failure.message().to_owned(),
    })?;
    Ok(Box::new(Remote::new(reference, &options)?))
}

fn package(args: &Push, reference: &Reference) -> Result<Package, Failure> {
    let last = reference.repository.rsplit('/').next();
    let name = args.name.clone().or_else(|| last.map(str::to_owned));
    let version = args
        .artifact_version
        .clone()
        .unwrap_or_else(|| reference.tag.clone());
    let dependencies: Result<_, _> = args
        .depends_on
        .iter()
        .map(|it| Dependency::parse(it))
        .collect();
    let requirements = args.requires.iter().map(|it| NameAndVersion::parse(it));
    let requirements: Result<_, _> = requirements.collect();
    let tests = args.test.iter().map(|path| {
        Ok(TestFile {
            path: name_of(path)?,
            bytes: text_file::read_bytes(path).map_err(|error| cannot(path, &error))?,
        })
    });
    let file = name_of(&args.file)?.display().to_string();
    if !file.ends_with(".yaml") && !file.ends_with(".yml") {
        return Err(cannot(
            &args.file,
            &"the name of a rule file ends in .yaml or .yml",
        ));
    }
    Ok(Package {
        config: Config {
            name,
            version: Some(version),
            dependencies: dependencies.map_err(|error| failed(&error))?,
            requirements: requirements.map_err(|error| failed(&error))?,
        },
        file,
        rules: text_file::read(&args.file).map_err(|error| cannot(&args.file, &error))?,
        tests: tests.collect::<Result<_, Failure>>()?,
    })
}

fn cannot(path: &Path, cause: &dyn std::fmt::Display) -> Failure {
    let message = format!("cannot publish {}: {cause}", path.display());
    Failure::new(Exit::BadInput, message).help("name a rule file, and files of tests with --test")
}

fn name_of(path: &Path) -> Result<PathBuf, Failure> {
    let name = path.file_name().map(PathBuf::from);
    name.ok_or_else(|| cannot(path, &"it is no file"))
}

/// Checks the rules and runs the tests, as installations will. Rules that need other artefacts are checked there, where
/// these are.
/// Problems name the files of `tests`, as the user did.
fn check(package: &Package, tests: &[PathBuf]) -> Result<(), Failure> {
    if !package.config.dependencies.is_empty() {
        terminal::complain(
            "tollgate: the rules depend on others, and are checked where they are installed\n",
        );
        return Ok(());
    }
    let name = package.config.name.clone().ok_or_else(|| {
        Failure::new(Exit::BadInput, "cannot publish rules without a name")
            .help("give one with --name")
    })?;
    let candidate = Candidate {
        name,
        path: PathBuf::from(&package.file),
        replaces: None,
        rules: package.rules.clone(),
        tests: package.tests.clone(),
    };
    // After the built-in rules alone: the folder of this machine has nothing to do with them.
    super::check::check(&[candidate], None).map_err(|mut problem| {
        for (packed, path) in package.tests.iter().zip(tests) {
            let packed = format!("tests/{}", packed.path.display());
            problem = problem.replace(&packed, &path.display().to_string());
        }
        let message = format!("cannot publish {}: {problem}", package.file);
        Failure::new(Exit::BadInput, message)
            .help("correct the rules or the tests; nothing was published")
    })
}
