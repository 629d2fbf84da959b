//! `tollgate top` in a terminal of 80 x 24 characters that tmux draws.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use e2e::{Finished, Limited, Scratch, need_root};

const LIMIT: Duration = Duration::from_secs(60);

/// Held by a test that watches live processes: each would see the other one open the files that rules name.
static LIVE: Mutex<()> = Mutex::new(());

/// A tmux server of its own, which ends with the test.
struct Screen {
    scratch: Scratch,
}

impl Screen {
    /// Runs a shell line in a terminal, then shows its exit status and waits.
    fn start(line: &str) -> Self {
        let screen = Self {
            scratch: Scratch::new(),
        };
        let program = e2e::program();
        let program = program.display();
        let script = format!(
            "echo before; tollgate() {{ {program} \"$@\"; }}\n{line}\n\
             echo \"status $?\"; stty -a | grep -o '[-]*icanon'; exec sleep 1000\n"
        );
        let file = screen.scratch.file("script", 0o644, script);
        let shell = format!("exec sh {}", file.display());
        let size = ["-x", "80", "-y", "24"];
        let mut words = vec!["-f", "/dev/null", "new-session", "-d"];
        words.extend(size);
        words.push(&shell);
        screen.tmux(&words);
        screen
    }

    fn tmux(&self, words: &[&str]) -> String {
        let socket = self.scratch.path().join("tmux");
        let mut command = Command::new("tmux");
        command
            .arg("-S")
            .arg(socket)
            .args(words)
            .stdin(Stdio::null());
        // Not within the tmux that may run this test.
        command
            .env_remove("TMUX")
            .env("LC_ALL", "C.UTF-8")
            .env("TERM", "xterm-256color")
            // tmux runs the command by it.
            .env("SHELL", "/bin/sh");
        let finished = Limited::start(&mut command, LIMIT).finish(b"");
        assert_eq!(finished.code(), 0, "{words:?}: {finished:?}");
        finished.stdout
    }

    fn text(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Presses keys when the program has the terminal: what comes before is lost.
    fn press(&self, keys: &str) {
        self.shows("tollgate top");
        self.tmux(&["send-keys", keys]);
    }

    /// Waits until the terminal shows a text, and returns all of it.
    fn shows(&self, wanted: &str) -> String {
        let deadline = Instant::now() + LIMIT;
        loop {
            let text = self.text();
            if text.contains(wanted) {
                return text;
            }
            assert!(Instant::now() < deadline, "no {wanted:?} in\n{text}");
            sleep(Duration::from_millis(100));
        }
    }

    /// The terminal is as it was before: its text is there again, and it edits lines.
    fn is_restored(&self, status: u8) {
        let text = self.shows("icanon");
        assert!(text.starts_with("before\n"), "{text}");
        assert!(text.contains(&format!("status {status}\n")), "{text}");
        assert!(!text.contains("-icanon"), "{text}");
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let socket = self.scratch.path().join("tmux");
        let mut command = Command::new("tmux");
        command
            .arg("-S")
            .arg(socket)
            .arg("kill-server")
            .stdin(Stdio::null());
        // The server may have ended already.
        let _ = command.stderr(Stdio::null()).status();
    }
}

fn tollgate(words: &[&str]) -> Finished {
    let mut command = Command::new(e2e::program());
    command.args(words).stdin(Stdio::null());
    Limited::start(&mut command, LIMIT).finish(b"")
}

#[test]
fn a_capture_is_shown_filtered_and_explained_and_the_terminal_restored() {
    let scratch = Scratch::new();
    fs::write(scratch.path().join("shadow"), "").expect("the folder is writable");
    let rules = "- rule: Named\n  desc: d\n  condition: evt.type in (open, openat) and fd.name contains shadow\n  \
                 output: opened %fd.name\n  priority: ERROR\n";
    let rules = scratch.file("r.yaml", 0o644, rules);
    let capture = scratch.path().join("c.scap");
    let [rules, capture] = [&rules, &capture].map(|path| path.to_str().expect("plain names"));
    let mut command = Command::new(e2e::program());
    command
        .args(["run", "-q", "-r", rules, "-w", capture, "--", "sh", "-c"])
        .arg(format!(
            "cd {}; cat 'shadow\u{1b}[2J'; cat shadow; cat shadow; true",
            scratch.path().display()
        ))
        .stdin(Stdio::null());
    let recorded = Limited::start(&mut command, LIMIT).finish(b"");
    assert_eq!(recorded.code(), 0, "{recorded:?}");
    let screen = Screen::start(&format!("tollgate top -r {rules} {capture}"));
    screen.shows("alerts: 3");
    screen.press("3");
    let text = screen.shows("why");
    // Two of them are the same file.
    assert!(text.contains("x2"), "{text}");
    assert!(text.contains("fd.name"), "the value that matched: {text}");
    screen.press("/");
    screen.press("2J");
    let text = screen.shows("/2J_");
    assert!(text.contains("shadow\\u{1b}[2J"), "{text}");
    assert!(!text.contains("x2"), "{text}");
    screen.press("Escape");
    // Many keys at once take no longer than one: a frame each would be 10 s.
    screen.press("/");
    let typed = "0123456789".repeat(4);
    let begun = Instant::now();
    screen.press(&typed);
    screen.shows(&format!("/{typed}_"));
    assert!(
        begun.elapsed() < Duration::from_secs(6),
        "{:?}",
        begun.elapsed()
    );
    screen.press("Escape");
    screen.press("q");
    screen.is_restored(0);
}

#[test]
fn live_alerts_appear_and_a_signal_restores_the_terminal() {
    need_root!();
    let _alone = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
    let scratch = Scratch::new();
    let pid = scratch.path().join("pid");
    let line = format!(
        "sh -c 'echo $$ > {}; exec {} top'",
        pid.display(),
        e2e::program().display()
    );
    let screen = Screen::start(&line);
    screen.shows("all processes (eBPF)  0 lost");
    let cat = Command::new("cat")
        .arg("/etc/shadow")
        .stdout(Stdio::null())
        .status();
    assert!(cat.expect("it is installed").success());
    screen.press("3");
    let text = screen.shows("Read sensitive file untrusted");
    assert!(text.contains(" cat"), "{text}");
    let top = fs::read_to_string(pid).expect("it was written");
    let killed = Command::new("kill").args(["-TERM", top.trim()]).status();
    assert!(killed.expect("it is installed").success());
    screen.is_restored(0);
}

#[test]
fn the_program_ends_with_its_terminal() {
    let scratch = Scratch::new();
    let (pid, capture) = (scratch.path().join("pid"), scratch.path().join("c.scap"));
    let recorded = tollgate(&["run", "-w", &capture.display().to_string(), "--", "true"]);
    assert_eq!(recorded.code(), 0, "{recorded:?}");
    let line = format!(
        "sh -c 'echo $$ > {}; exec {} top {}'",
        pid.display(),
        e2e::program().display(),
        capture.display()
    );
    let screen = Screen::start(&line);
    screen.shows("q quit");
    let top = fs::read_to_string(pid).expect("it was written");
    screen.tmux(&["kill-server"]);
    let running = Path::new("/proc").join(top.trim());
    let deadline = Instant::now() + LIMIT;
    // A zombie of whoever adopts it has no executable.
    while fs::read_link(running.join("exe")).is_ok() {
        assert!(Instant::now() < deadline, "it runs on without a terminal");
        sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_configuration_file_and_options_apply_as_for_watch() {
    let scratch = Scratch::new();
    let rules = "- rule: Configured\n  desc: d\n  condition: evt.type in (open, openat) and fd.name endswith /wanted\n  \
                 output: opened %fd.name\n  priority: ERROR\n";
    let rules = scratch.file("r.yaml", 0o644, rules);
    let config = format!("rules_files:\n  - {}\n", rules.display());
    let config = scratch.file("c.yaml", 0o644, config);
    let capture = scratch.path().join("c.scap");
    fs::write(scratch.path().join("wanted"), "").expect("the folder is writable");
    let mut command = Command::new(e2e::program());
    command
        .args(["run", "-q", "-r"])
        .arg(&rules)
        .arg("-w")
        .arg(&capture)
        .args(["--", "cat"])
        .arg(scratch.path().join("wanted"))
        .stdin(Stdio::null());
    let recorded = Limited::start(&mut command, LIMIT).finish(b"");
    assert_eq!(recorded.code(), 0, "{recorded:?}");
    let (config, capture) = (config.display(), capture.display());
    let screen = Screen::start(&format!("tollgate top -c {config} {capture}"));
    screen.press("3");
    screen.shows("Configured");
    screen.press("q");
    screen.is_restored(0);
    let selected = "-o 'rules[].disable.rule=Configured'";
    let screen = Screen::start(&format!("tollgate top -c {config} {selected} {capture}"));
    screen.press("3");
    // The name stands there alone when the capture has been read.
    screen.shows(&format!("tollgate top  {capture}"));
    screen.shows("no alert yet");
    screen.press("q");
    screen.is_restored(0);
    let screen = Screen::start(&format!("tollgate top -c {config}.gone {capture}"));
    screen.is_restored(2);
}

#[test]
fn a_container_that_does_not_run_is_waited_for() {
    need_root!();
    let _alone = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
    let screen = Screen::start("tollgate top --container no-such");
    let text = screen.shows("waiting for no-such");
    assert!(text.contains("container no-such (eBPF)"), "{text}");
    screen.press("q");
    screen.is_restored(0);
}

#[test]
fn without_a_terminal_or_root_the_reason_is_given() {
    let piped = tollgate(&["top"]);
    assert_eq!(piped.code(), 2, "{piped:?}");
    assert!(piped.stderr.contains("have to be a terminal"), "{piped:?}");
    need_root!();
    // The home of root may be closed to the user.
    let line = "HOME=/nonexistent setpriv --reuid 65534 --clear-groups tollgate top";
    let line = line.replace("tollgate", &e2e::program().display().to_string());
    let screen = Screen::start(&line);
    screen.is_restored(3);
    assert!(
        screen
            .text()
            .contains("live processes need root: `sudo tollgate top`"),
        "{}",
        screen.text()
    );
}
