//! Bills, licences and labels are about the program: what the tree at hand did not build is packed only if its commit is named.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use e2e::{Finished, Limited, Scratch, program, repository};

use super::{LIMIT, run};

const OTHER: &str = "0123456789ab";

/// A clone that has the scripts, and one commit.
struct Tree {
    scratch: Scratch,
    root: PathBuf,
}

impl Tree {
    fn new() -> Self {
        let scratch = Scratch::new();
        let root = scratch.path().join("tree");
        fs::create_dir_all(root.join("packaging")).expect("it is our folder");
        for script in ["common.sh", "dist.sh", "image.sh"] {
            let from = repository().join("packaging").join(script);
            fs::copy(from, root.join("packaging").join(script)).expect("it is there");
        }
        fs::write(root.join("Cargo.toml"), "version = \"1.2.3\"\n").expect("it is our folder");
        fs::write(root.join("CHANGELOG.md"), "").expect("it is our folder");
        let tree = Self { scratch, root };
        tree.git(&["init", "--quiet"]);
        tree.git(&["add", "."]);
        let identity = ["-c", "user.name=a", "-c", "user.email=a@localhost"];
        let commit = ["commit", "--quiet", "--no-gpg-sign", "--message=one"];
        tree.git(&[&identity[..], &commit].concat());
        tree
    }

    /// Runs git and returns what it prints, without the end of the line.
    fn git(&self, words: &[&str]) -> String {
        let mut git = Command::new("git");
        let printed = run(git.args(words).current_dir(&self.root)).stdout;
        printed.trim_end().to_owned()
    }

    /// Makes a program that says this about itself, outside of the tree.
    fn program(&self, version: &str, commit: Option<&str>) -> PathBuf {
        let said = serde_json::json!({"name": "tollgate", "version": version, "commit": commit});
        let text = format!("#!/bin/sh\necho '{said}'\n");
        self.scratch.file("program", 0o755, text)
    }

    /// Packs a program, and returns what the script says of it if it refuses.
    fn pack(&self, script: &str, program: &Path, commit: Option<&str>) -> Finished {
        let mut pack = Command::new(self.root.join("packaging").join(script));
        pack.arg(program).arg(self.scratch.path().join("made"));
        for variable in ["VERSION", "COMMIT", "GIT_DIR", "GIT_WORK_TREE"] {
            pack.env_remove(variable);
        }
        pack.envs(commit.map(|commit| ("COMMIT", commit)));
        pack.env("GIT_CEILING_DIRECTORIES", self.scratch.path());
        pack.env("NOTICES", "/dev/null").env("XTASK", "false");
        Limited::start(pack.stdin(Stdio::null()), LIMIT).finish(b"")
    }

    /// Asserts that the program is refused with these words.
    fn refuses(&self, program: &Path, commit: Option<&str>, (problem, help): (&str, &str)) {
        let refused = self.pack("dist.sh", program, commit);
        let program = program.display();
        let message = format!("packaging/dist.sh: cannot pack {program}: {problem}\nhelp: {help}");
        assert_eq!(refused.code(), 1, "{refused:?}");
        assert!(
            refused.stderr.starts_with(&message),
            "{message}: {refused:?}"
        );
        assert!(!self.scratch.path().join("made").exists());
    }

    /// Asserts that the script goes on to take the program apart, which is none here.
    fn accepts(&self, program: &Path, commit: Option<&str>) {
        let packed = self.pack("dist.sh", program, commit);
        assert!(!packed.stderr.contains("cannot pack"), "{packed:?}");
        let made = self.scratch.path().join("made");
        fs::remove_dir(&made).expect("the script makes it after its checks");
    }
}

#[test]
fn a_program_of_another_commit_is_packed_only_if_the_commit_is_named() {
    let tree = Tree::new();
    let head = tree.git(&["rev-parse", "--short=12", "HEAD"]);
    tree.accepts(&tree.program("1.2.3", Some(&head)), None);
    let other = tree.program("1.2.3", Some(OTHER));
    let problem = format!("its commit is {OTHER}, and the tree has {head}");
    let help = format!("run make static, or set COMMIT={OTHER} to pack this program; ");
    tree.refuses(&other, None, (&problem, &help));
    tree.accepts(&other, Some(OTHER));
    let problem = format!("its commit is {OTHER}, not {head}");
    tree.refuses(
        &other,
        Some(&head),
        (&problem, &format!("set COMMIT={OTHER}")),
    );
    // It says none.
    let unknown = tree.program("1.2.3", None);
    let problem = format!("its commit is unknown, and the tree has {head}");
    tree.refuses(
        &unknown,
        None,
        (&problem, "run make static, or set COMMIT=unknown"),
    );
    tree.accepts(&unknown, Some("unknown"));
    let newer = tree.program("1.2.4", Some(&head));
    tree.refuses(
        &newer,
        None,
        ("its version is 1.2.4, not 1.2.3", "set VERSION=1.2.4"),
    );
    let image = tree.pack("image.sh", &program(), None);
    assert_eq!(image.code(), 1, "{image:?}");
    let problem = format!(", and the tree has {head}\n");
    assert!(image.stderr.contains(&problem), "{image:?}");
}

#[test]
fn a_program_of_a_changed_tree_or_of_no_clone_is_packed_only_if_its_commit_is_named() {
    let tree = Tree::new();
    let head = tree.git(&["rev-parse", "--short=12", "HEAD"]);
    fs::write(tree.root.join("CHANGELOG.md"), "changed\n").expect("it is ours");
    let changed = format!("{head}-dirty");
    for commit in [&head, &changed] {
        let program = tree.program("1.2.3", Some(commit));
        let help = format!("commit them and build again, or set COMMIT={commit} to pack");
        tree.refuses(
            &program,
            None,
            ("the tree has changes that no commit has", &help),
        );
        tree.accepts(&program, Some(commit));
    }
    fs::remove_dir_all(tree.root.join(".git")).expect("it is ours");
    let program = tree.program("1.2.3", None);
    let problem = (
        "the commit of the tree is not known",
        "pack in a clone, or set COMMIT=unknown",
    );
    tree.refuses(&program, None, problem);
}
