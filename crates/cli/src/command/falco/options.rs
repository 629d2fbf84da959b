//! Options that set keys of the configuration, and options without effect.

use config::path_value;
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;

use super::args::{Falco, Old};

/// Returns the `-o` options: first those given, then those that other options stand for, which therefore win.
pub(super) fn assignments(args: &Falco) -> Vec<String> {
    let mut out = args.options.clone();
    let mut set = |assignment: &str| out.push(assignment.to_owned());
    if let Some(capture) = &args.replay {
        set("engine.kind=replay");
        let path = path_value(capture);
        set(&format!("engine.replay.capture_file={path}"));
    }
    if args.unbuffered {
        set("buffered_outputs=false");
    }
    if args.verbose {
        set("log_level=debug");
    }
    match args.print.as_deref() {
        None => {}
        Some("c" | "container" | "k" | "kubernetes") => {
            set("append_output[]={suggested_output: true}");
        }
        Some(format) => {
            let format = quoted(format);
            set(&format!("append_output[]={{extra_output: {format}}}"));
        }
    }
    old(&args.old, &mut set);
    out
}

fn old(args: &Old, set: &mut impl FnMut(&str)) {
    for text in &args.disable_rules {
        let pattern = quoted(&format!("*{text}*"));
        set(&format!("rules[]={{disable: {{rule: {pattern}}}}}"));
    }
    if !args.only_tags.is_empty() {
        set("rules[]={disable: {rule: '*'}}");
    }
    for (verb, tags) in [("enable", &args.only_tags), ("disable", &args.disable_tags)] {
        for tag in tags {
            let tag = quoted(tag);
            set(&format!("rules[]={{{verb}: {{tag: {tag}}}}}"));
        }
    }
    for (given, assignment) in [
        (args.all_events, "base_syscalls.all=true"),
        (args.base64, "buffer_format_base64=true"),
        (args.modern_bpf, "engine.kind=modern_ebpf"),
        (args.nodriver, "engine.kind=nodriver"),
    ] {
        if given {
            set(assignment);
        }
    }
    if let Some(file) = &args.gvisor_config {
        set("engine.kind=gvisor");
        let path = path_value(file);
        set(&format!("engine.gvisor.config={path}"));
    }
    if let Some(bytes) = args.snaplen {
        set(&format!("falco_libs.snaplen={bytes}"));
    }
}

/// Quotes a text as a YAML value: JSON is YAML.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Returns the warnings about options that have no effect.
pub(super) fn warnings(args: &Falco) -> Vec<String> {
    let old = &args.old;
    let api = "tollgate does not query the Kubernetes API";
    let runtimes = "container runtimes are found by their state on disk";
    let given = [
        ("-d", old.daemon, "start it in the background instead"),
        ("--cri", !old.cri.is_empty(), runtimes),
        ("--disable-cri-async", old.disable_cri_async, runtimes),
        ("-k", old.k8s_api.is_some(), api),
        ("-K", old.k8s_api_cert.is_some(), api),
        ("--k8s-node", old.k8s_node.is_some(), api),
        (
            "-m",
            old.mesos_api.is_some(),
            "tollgate does not query Mesos",
        ),
        (
            "--gvisor-root",
            old.gvisor_root.is_some(),
            "containers are found in the state files of gVisor and other runtimes",
        ),
    ];
    let given = given.into_iter().filter(|(_, given, _)| *given);
    let mut out: Vec<_> = given
        .map(|(option, _, why)| format!("{option} has no effect: {why}"))
        .collect();
    if args.print.is_some() {
        out.push("-p is deprecated: set append_output".to_owned());
    }
    if args.markdown {
        out.push("--markdown is deprecated: use --format markdown".to_owned());
    }
    let rest = args.old.rest.iter();
    out.extend(rest.map(|word| format!("`{}` is passed over", word.display())));
    out
}

/// Refuses options for unsupported features that cannot be ignored.
pub(super) fn refuse(args: &Falco) -> Result<(), Failure> {
    let leaves_out = !args.old.disable_rules.is_empty() || !args.old.disable_tags.is_empty();
    if leaves_out && !args.old.only_tags.is_empty() {
        let message = "cannot leave out rules (-D, -T) and leave out all but some (-t) at once";
        return Err(Failure::new(Exit::BadInput, message)
            .help("write both as -o rules[]=..., which apply in their order"));
    }
    if !args.old.userspace {
        return Ok(());
    }
    let message =
        "cannot use the engine in user space (-u): Falco 0.44 has none, and neither is one here";
    Err(Failure::new(Exit::BadInput, message).help(
        "leave it out to watch by eBPF, or watch a command without privileges by `tollgate run`",
    ))
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches};

    use super::*;
    use config::{self, CompatMode, FalcoEngine};

    fn parse(line: &[&str]) -> Falco {
        let command = Falco::augment_args(Command::new("falco"));
        let matches = command.get_matches_from(line);
        Falco::from_arg_matches(&matches).expect("a good command line")
    }

    #[test]
    fn options_that_stand_for_keys_set_them() {
        let args = parse(&[
            "falco",
            "-U",
            "-pk",
            "-e",
            "a b.scap",
            "-D",
            "Read \"x\"",
            "-t",
            "net",
            "-T",
            "x",
            "-o",
            "priority=error",
            "-v",
            "-S",
            "100",
        ]);
        let (config, warnings) =
            config::load(None, &assignments(&args), CompatMode::Falco).expect("good options");
        assert_eq!(config.engine.kind, FalcoEngine::Replay);
        assert_eq!(config.engine.capture_file.display().to_string(), "a b.scap");
        let rules: Vec<_> = config
            .rules
            .iter()
            .map(|rule| (rule.enable, rule.rule.as_deref(), rule.tag.as_deref()))
            .collect();
        assert_eq!(
            rules,
            [
                (false, Some("*Read \"x\"*"), None),
                (false, Some("*"), None),
                (true, None, Some("net")),
                (false, None, Some("x")),
            ]
        );
        let output = config.append_output[0].extra_output.as_deref();
        assert!(output.is_some_and(|output| output.contains("%k8s.pod.name")));
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("falco_libs.snaplen"), "{warnings:?}");
    }

    #[test]
    fn a_format_of_ones_own_is_appended() {
        let args = parse(&["falco", "-p", "user: %user.name [x], {y}"]);
        let (config, _) =
            config::load(None, &assignments(&args), CompatMode::Falco).expect("good options");
        assert_eq!(
            config.append_output[0].extra_output.as_deref(),
            Some("user: %user.name [x], {y}")
        );
        assert_eq!(warnings(&args), ["-p is deprecated: set append_output"]);
    }

    #[test]
    fn engines_that_are_gone_are_refused() {
        assert!(refuse(&parse(&["falco", "-u"])).is_err());
        assert!(refuse(&parse(&["falco", "-D", "x", "-t", "y"])).is_err());
        assert!(refuse(&parse(&["falco", "-D", "x", "-T", "y"])).is_ok());
        assert!(refuse(&parse(&["falco", "--modern-bpf"])).is_ok());
    }

    #[test]
    fn the_trace_session_of_gvisor_chooses_its_engine() {
        let args = parse(&["falco", "-g", "/run/s.json"]);
        assert!(refuse(&args).is_ok());
        let (config, _) =
            config::load(None, &assignments(&args), CompatMode::Falco).expect("good options");
        assert_eq!(config.engine.kind, FalcoEngine::Gvisor);
        assert_eq!(
            config.engine.gvisor_session,
            std::path::Path::new("/run/s.json")
        );
        let kind = ["engine.kind=gvisor".to_owned()];
        let failure =
            config::load(None, &kind, CompatMode::Falco).expect_err("no session is named");
        assert!(failure.render().contains("no trace session is named"));
    }
}
