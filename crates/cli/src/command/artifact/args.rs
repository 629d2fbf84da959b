//! The command line of `tollgate artifact`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

const OUTPUT: &str = "Output options";
const PACKAGE: &str = "Package options";
const REGISTRY: &str = "Registry options";
const RULES: &str = "Rule options";
const TRUST: &str = "Signature options";

/// `tollgate artifact`.
#[derive(Debug, Subcommand)]
pub(crate) enum Artifact {
    /// Search index files for rules and plug-ins
    Search(Search),
    /// Verify rules of a registry, test them and install them
    Install(Box<Install>),
    /// Install newer versions as soon as a registry has them
    Follow(Box<Follow>),
    /// Verify signature and content of an artefact, and install nothing
    Verify(Box<VerifyArtifact>),
    /// Publish a rule file with its tests, and sign it
    Push(Box<Push>),
}

/// Where artefacts are.
#[derive(Args, Clone, Debug)]
pub(crate) struct RegistryOptions {
    /// Look names up in this index file: a path or an https:// address; can be repeated
    #[arg(long, value_name = "FILE|URL", help_heading = REGISTRY)]
    pub(crate) index: Vec<String>,
    #[command(flatten)]
    pub(crate) access: AccessOptions,
}

/// How to reach a registry.
#[derive(Args, Clone, Debug)]
pub(crate) struct AccessOptions {
    /// Read credentials from this file, in the form of ~/.docker/config.json
    #[arg(long, value_name = "FILE", help_heading = REGISTRY)]
    pub(crate) auth_file: Option<PathBuf>,
    /// Trust the certificates in FILE for the registry [default: those of the system]
    #[arg(long, value_name = "FILE", help_heading = REGISTRY)]
    pub(crate) ca: Option<PathBuf>,
    /// Use HTTP without TLS; for a registry on this machine, such as localhost:5000
    #[arg(long, help_heading = REGISTRY)]
    pub(crate) plain_http: bool,
}

/// Who has to have signed.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub(crate) struct TrustOptions {
    /// Accept signatures by this public key of cosign, in PEM form; can be repeated
    #[arg(long, required_unless_present = "allow_unsigned", value_name = "FILE", help_heading = TRUST)]
    pub(crate) key: Vec<PathBuf>,
    /// Accept an artefact without looking for a signature
    #[arg(long, conflicts_with_all = ["key", "signed_as"], help_heading = TRUST)]
    pub(crate) allow_unsigned: bool,
    /// Accept signatures for this repository, of which the registry has a copy
    #[arg(long, requires = "key", value_name = "REGISTRY/REPOSITORY", help_heading = TRUST)]
    pub(crate) signed_as: Option<String>,
}

/// How to install.
#[derive(Args, Clone, Debug)]
pub(crate) struct InstallRules {
    /// Install into this folder of rule files [default: /etc/tollgate/rules.d]
    #[arg(long, value_name = "FOLDER", help_heading = RULES)]
    pub(crate) rules_dir: Option<PathBuf>,
    /// Install an older version than the installed one, or other content of the same version
    #[arg(long, help_heading = RULES)]
    pub(crate) allow_rollback: bool,
}

/// `tollgate artifact search`.
#[derive(Args, Debug)]
pub(crate) struct Search {
    /// Words that name, keywords or description must have
    #[arg(value_name = "WORD")]
    pub(crate) words: Vec<String>,
    /// Search this index file: a path or an https:// address; can be repeated
    #[arg(long, required = true, value_name = "FILE|URL")]
    pub(crate) index: Vec<String>,
    /// Trust the certificates in FILE for the index [default: those of the system]
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tollgate artifact install`.
#[derive(Args, Debug)]
pub(crate) struct Install {
    /// REGISTRY/REPOSITORY or a name of an index, with :TAG or @sha256:DIGEST
    #[arg(value_name = "ARTIFACT", required = true)]
    pub(crate) artifacts: Vec<String>,
    #[command(flatten)]
    pub(crate) trust: TrustOptions,
    #[command(flatten)]
    pub(crate) registry: RegistryOptions,
    #[command(flatten)]
    pub(crate) rules: InstallRules,
    /// Print JSON, one object a line
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
}

/// `tollgate artifact follow`.
#[derive(Args, Debug)]
pub(crate) struct Follow {
    /// REGISTRY/REPOSITORY:TAG or a name of an index
    #[arg(value_name = "ARTIFACT", required = true)]
    pub(crate) artifacts: Vec<String>,
    /// Ask the registry this often, as in 30s or 6h
    #[arg(long, value_name = "TIME", default_value = "6h", help_heading = REGISTRY)]
    pub(crate) every: String,
    #[command(flatten)]
    pub(crate) trust: TrustOptions,
    #[command(flatten)]
    pub(crate) registry: RegistryOptions,
    #[command(flatten)]
    pub(crate) rules: InstallRules,
}

/// `tollgate artifact verify`.
#[derive(Args, Debug)]
pub(crate) struct VerifyArtifact {
    /// REGISTRY/REPOSITORY or a name of an index, with :TAG or @sha256:DIGEST
    #[arg(value_name = "ARTIFACT")]
    pub(crate) artifact: String,
    #[command(flatten)]
    pub(crate) trust: TrustOptions,
    #[command(flatten)]
    pub(crate) registry: RegistryOptions,
    /// Read from a folder in the form of the OCI's image layout instead of the registry
    #[arg(long, value_name = "FOLDER", help_heading = REGISTRY)]
    pub(crate) layout: Option<PathBuf>,
    /// Print JSON
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
}

/// `tollgate artifact push`.
#[derive(Args, Debug)]
pub(crate) struct Push {
    /// REGISTRY/REPOSITORY:TAG to publish under
    #[arg(value_name = "ARTIFACT")]
    pub(crate) artifact: String,
    /// The rule file
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Name of the artefact, as an index has it [default: last part of the repository]
    #[arg(long, value_name = "NAME", help_heading = PACKAGE)]
    pub(crate) name: Option<String>,
    /// Version of the artefact [default: the tag]
    #[arg(long, value_name = "VERSION", help_heading = PACKAGE)]
    pub(crate) artifact_version: Option<String>,
    /// Add a file of tests, or one that tests refer to; can be repeated
    #[arg(long, value_name = "FILE", help_heading = PACKAGE)]
    pub(crate) test: Vec<PathBuf>,
    /// Artefact that it needs; can be repeated
    #[arg(long, value_name = "NAME:VERSION[|NAME:VERSION]", help_heading = PACKAGE)]
    pub(crate) depends_on: Vec<String>,
    /// What it requires, as in engine_version_semver:0.57.0; can be repeated
    #[arg(long, value_name = "NAME:VERSION", help_heading = PACKAGE)]
    pub(crate) requires: Vec<String>,
    /// Give it this tag, too; can be repeated
    #[arg(long, value_name = "TAG", help_heading = REGISTRY)]
    pub(crate) add_tag: Vec<String>,
    #[command(flatten)]
    pub(crate) access: AccessOptions,
    /// Write to a folder in the form of the OCI's image layout instead of the registry
    #[arg(long, value_name = "FOLDER", help_heading = REGISTRY)]
    pub(crate) layout: Option<PathBuf>,
    /// Sign it as cosign does, with this private key in PEM form
    #[arg(long, value_name = "FILE", help_heading = TRUST)]
    pub(crate) sign_key: Option<PathBuf>,
    /// Print JSON
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
}
