//! Cache of compiled rules: an image loads in a fraction of the time that the rules compile in.
//!
//! An entry is found by all that the image is made from: the program's file, the texts of the rule files and the
//! options. The cache lies where only this user can write: an image is not checked as rules are, so whoever can
//! write it decides what is detected, like whoever can write the rules. Agents of services do not use it.

use std::env;
use std::path::{Path, PathBuf};

use config::Config;
use config::rule_files::RuleFile;
use event::Plan;
use rules::{Engine, EngineOptions};

use super::cache_files::{self, hash, parts, ready};
use super::filter_cache::program_identity;
use super::sink::DeferredSink;

/// Where root's cache is. It does not outlive a boot.
const FOLDER: &str = "/run/tollgate/rules";

/// The entry of a set of rules.
pub(super) struct RulesCache {
    folder: PathBuf,
    key: Vec<u8>,
}

/// Rules as cached.
pub(super) struct CachedRules {
    pub(super) evaluator: Engine,
    pub(super) plan: Plan,
    /// Warnings that loading them gave.
    pub(super) warnings: Vec<String>,
}

/// Returns this user's directory for compiled rules; `None` if there is none that only this user can change.
pub(super) fn folder() -> Option<PathBuf> {
    if config::trust::is_wanted() {
        let folder = PathBuf::from(FOLDER);
        return config::trust::check(&folder).is_ok().then_some(folder);
    }
    let above = PathBuf::from(env::var_os("XDG_RUNTIME_DIR")?);
    (above.is_absolute() && cache_files::is_private(&above))
        .then(|| above.join("tollgate").join("rules"))
}

impl RulesCache {
    /// Returns the entry of these rules. `None` if they are not cached: a file cannot be read, or events are recorded,
    /// for which rules are compiled differently.
    pub(super) fn of(
        folder: &Path,
        files: &[RuleFile],
        config: &Config,
        options: &EngineOptions,
    ) -> Option<Self> {
        // Every option is named here, so that a new one does not compile until somebody decides.
        let EngineOptions {
            priority,
            rule_matching,
            append_output,
            static_fields,
            clock: _,
            profile,
            recorder,
            context,
            source,
        } = options;
        // An image names fields of the registry only.
        if recorder.is_some() || source.is_some() {
            return None;
        }
        let program = program_identity().ok()?;
        let selection = &config.rules;
        let options = format!(
            "{program}\n{selection:?}\n{priority:?} {rule_matching:?} {append_output:?} {static_fields:?} \
             {profile:?} {context:?}"
        );
        let mut key = Vec::new();
        let mut add = |text: &str| {
            key.extend_from_slice(&(text.len() as u64).to_le_bytes());
            key.extend_from_slice(text.as_bytes());
        };
        add(&options);
        for file in files {
            add(&file.name);
            add(file.text.as_ref().ok()?);
        }
        Some(Self {
            folder: folder.to_owned(),
            key,
        })
    }

    /// Reads the rules, if they are cached.
    pub(super) fn read(&self, options: &EngineOptions, sink: &DeferredSink) -> Option<CachedRules> {
        let bytes = cache_files::read(&self.folder, &self.file())?;
        let [key, image, warnings] = parts(&bytes)?;
        (*key == self.key).then_some(())?;
        // An invalid image is created again.
        let (evaluator, plan) = Engine::from_image(image, options, Box::new(sink.clone())).ok()?;
        let warnings = std::str::from_utf8(warnings).ok()?;
        Some(CachedRules {
            evaluator,
            plan,
            warnings: warnings.lines().map(str::to_owned).collect(),
        })
    }

    /// Writes the rules. A failure only costs the next start some time.
    pub(super) fn keep(&self, engine: &Engine, plan: &Plan, warnings: &[String]) {
        // An entry holds a warning a line.
        if warnings.iter().any(|warning| warning.contains('\n')) {
            return;
        }
        let write = || -> std::io::Result<()> {
            if ready(&self.folder)? {
                let image = engine.to_image(plan);
                let warnings = warnings.join("\n");
                let parts = [&*self.key, &image, warnings.as_bytes()];
                cache_files::write(&self.folder, &self.file(), parts)?;
            }
            Ok(())
        };
        let _ = write();
    }

    fn file(&self) -> PathBuf {
        self.folder.join(format!("{:016x}.rules", hash(&self.key)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use rules::Priority;

    use super::*;

    struct Case {
        folder: tempfile::TempDir,
        files: Vec<RuleFile>,
        config: Config,
        options: EngineOptions,
    }

    impl Case {
        fn new() -> Self {
            Self {
                folder: tempfile::tempdir().unwrap(),
                files: config::rule_files::read_all(&[]),
                config: Config::default(),
                options: EngineOptions::default(),
            }
        }

        fn cache(&self) -> RulesCache {
            let folder = self.folder.path();
            RulesCache::of(folder, &self.files, &self.config, &self.options).unwrap()
        }

        fn keep(&self) -> Plan {
            let mut loaded = config::rule_files::load_read(self.files.clone());
            let (engine, plan) = loaded.compile(&self.options, DeferredSink::default());
            self.cache().keep(&engine, &plan, &["one".to_owned()]);
            plan
        }

        fn read(&self) -> Option<CachedRules> {
            self.cache().read(&self.options, &DeferredSink::default())
        }
    }

    #[test]
    fn rules_are_found_with_their_warnings_by_the_same_input_alone() {
        let mut case = Case::new();
        assert!(case.read().is_none());
        let plan = case.keep();
        let found = case.read().expect("they are kept");
        assert_eq!((found.plan, found.warnings), (plan, vec!["one".to_owned()]));
        assert!(found.evaluator.matches().next().is_some());

        case.options.priority = Priority::Critical;
        assert!(case.read().is_none(), "other options");
        case.options = EngineOptions::default();
        case.config.rules = vec![config::Selection {
            enable: false,
            rule: Some("*".to_owned()),
            tag: None,
            implied: false,
        }];
        assert!(case.read().is_none(), "another selection");
        case.config = Config::default();
        assert!(case.read().is_some());
        case.files[0].text = Ok("[]".to_owned());
        assert!(case.read().is_none(), "other rules");
    }

    #[test]
    fn the_key_is_compared_and_not_only_its_hash() {
        let mut case = Case::new();
        case.keep();
        let first = case.cache();
        case.files[0].name = "other".into();
        let other = case.cache();
        fs::copy(first.file(), other.file()).unwrap();
        assert!(case.read().is_none());
    }

    #[test]
    fn a_broken_image_is_not_used() {
        let case = Case::new();
        case.keep();
        let file = case.cache().file();
        let whole = fs::read(&file).unwrap();
        for len in [0, 8, 20, whole.len() / 2, whole.len() - 1] {
            fs::write(&file, &whole[..len]).unwrap();
            assert!(case.read().is_none(), "{len}");
        }
    }

    #[test]
    fn a_folder_that_others_can_write_to_is_not_trusted() {
        let case = Case::new();
        case.keep();
        let mode = fs::Permissions::from_mode(0o777);
        fs::set_permissions(case.folder.path(), mode).unwrap();
        assert!(case.read().is_none());
    }

    #[test]
    fn what_cannot_be_read_or_is_recorded_is_not_cached() {
        let mut case = Case::new();
        case.files[0].text = Err("denied".to_owned());
        let folder = case.folder.path();
        assert!(RulesCache::of(folder, &case.files, &case.config, &case.options).is_none());
    }
}
