use super::*;
use crate::actionner::{host_actionners, unavailable};

fn loaded(files: &[&str], accepted: &[&str]) -> Loaded {
    let files = files.iter().enumerate().map(|(number, text)| SourceFile {
        name: format!("{number}.yaml"),
        text: Ok((*text).to_owned()),
    });
    let accepted: Vec<_> = accepted.iter().map(|name| (*name).to_owned()).collect();
    load(files.collect(), &accepted)
}

/// The problems of files, a line each, without the lines of the file.
fn problems(files: &[&str]) -> Vec<String> {
    let problems = loaded(files, &[]).diagnostics;
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn a_definition_and_a_rule_make_an_action() {
    let text = "
- action: Stop it
  actionner: process:freeze
  continue: false
  parameters: {duration: 30, allow_protected: [sshd]}
- rule: Shells
  description: text
  match: {rules: [Shell]}
  dry_run: true
  continue: false
  actions:
    - action: Stop it
      ignore_errors: true
      parameters: {duration: 60s, allow_protected: [kubelet]}
    - action: Tell
      actionner: host:script
      parameters: {script: 'cat'}
";
    let loaded = loaded(&[text], &[]);
    assert_eq!(loaded.render(), "");
    assert_eq!(loaded.counts(), (1, 2));
    let rule = &loaded.responses.rules[0];
    assert_eq!((rule.continues, rule.dry_run), (false, true));
    let [stop, tell] = &rule.actions[..] else {
        panic!("two actions");
    };
    assert_eq!((stop.continues, stop.ignores_errors), (false, true));
    let Operation::Freeze { allowed, duration } = &stop.act else {
        panic!("{:?}", stop.act);
    };
    assert_eq!(allowed, &["sshd", "kubelet"]);
    assert_eq!(duration.map(|duration| duration.as_secs()), Some(60));
    assert_eq!((tell.continues, tell.ignores_errors), (true, false));
}

#[test]
fn later_files_change_entries_of_the_same_name() {
    let first = "
- action: Kill
  actionner: process:terminate
- rule: R
  match: {rules: [A], priority: Warning}
  actions: [{action: Kill}]
";
    let later = "
- action: Kill
  continue: true
- rule: R
  dry_run: true
  match: {rules: [B]}
  actions: [{action: Again, actionner: 'host:script', parameters: {file: /bin/true}}]
";
    let loaded = loaded(&[first, later], &[]);
    assert_eq!(loaded.render(), "");
    assert_eq!(loaded.counts(), (1, 2));
    let rule = &loaded.responses.rules[0];
    assert!(rule.dry_run);
    let names: Vec<_> = rule
        .matcher
        .rules
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(names, ["A", "B"]);
    assert!(rule.actions[0].continues);
}

#[test]
fn unknown_things_are_errors_with_their_place_and_a_suggestion() {
    for (text, problem, help) in [
        (
            "- rule: R\n  mtach: {rules: [A]}\n  actions: [{action: K, actionner: 'process:thaw'}]\n",
            "0.yaml:2:3: error[RESPONSE_UNKNOWN_KEY]: rule R: a rule has no key `mtach`",
            "did you mean `match`?",
        ),
        (
            "- rule: R\n  match: {rules: [A]}\n  actions:\n  - action: K\n    actionner: process:freez\n",
            "0.yaml:5:16: error[RESPONSE_UNKNOWN_ACTIONNER]: rule R: there is no actionner `process:freez`",
            "did you mean `process:freeze`?",
        ),
        (
            "- action: Kill it\n  actionner: process:terminate\n- rule: R\n  match: {rules: [A]}\n  actions:\n  - action: Kil it\n",
            "0.yaml:6:5: error[RESPONSE_UNKNOWN_ACTION]: rule R: no action `Kil it` with an actionner is defined",
            "did you mean `Kill it`?",
        ),
        (
            "- action: K\n  actionner: process:freeze\n  parameters: {duratoin: 3}\n",
            "0.yaml:3:26: error[RESPONSE_UNKNOWN_KEY]: action K: `process:freeze` has no parameter `duratoin`",
            "did you mean `duration`?",
        ),
        (
            "- rule: R\n  match: {rules: [A]}\n  continue: maybe\n  actions: [{action: K, actionner: 'process:thaw'}]\n",
            "0.yaml:3:13: error[RESPONSE_UNKNOWN_VALUE]: rule R: `continue` cannot be `maybe`",
            "expected one of true, false",
        ),
        (
            "- rule: R\n  match: {rules: [A]}\n  actions:\n  - action: K\n    actionner: process:terminate\n    \
             parameters: {allow_protected: [sshdd]}\n",
            "0.yaml:6:36: error[RESPONSE_UNKNOWN_VALUE]: rule R: `sshdd` is not protected, so it need not be allowed",
            "did you mean `sshd`?",
        ),
    ] {
        let loaded = loaded(&[text], &[]);
        let first = loaded.diagnostics.first().expect(text);
        assert_eq!(first.to_string(), problem);
        assert_eq!(first.help.as_deref(), Some(help), "{problem}");
        assert_eq!(loaded.diagnostics.len(), 1, "{}", loaded.render());
        assert!(!loaded.is_usable());
    }
}

#[test]
fn what_is_missing_or_has_the_wrong_form_is_an_error() {
    let rule =
        |action: &str| format!("- rule: R\n  match: {{rules: [A]}}\n  actions: [{action}]\n");
    for (text, problem) in [
        (
            "- description: x\n".to_owned(),
            "an entry needs the key `rule` or `action`",
        ),
        (
            "- rule: R\n  match: {rules: [A]}\n".to_owned(),
            "the rule has no action",
        ),
        ("- rule: ''\n".to_owned(), "an entry needs a name in `rule`"),
        (
            "rule: R\n".to_owned(),
            "`the file` has to be a list, found a mapping",
        ),
        (
            rule("{action: K, actionner: 'host:script'}"),
            "`host:script` needs one of the parameters `script` and `file`; `shell` goes with `script`",
        ),
        (
            rule("{action: K, actionner: 'host:script', parameters: {file: bin/x}}"),
            "`file` has to be an absolute path, found `bin/x`",
        ),
        (
            rule("{action: K, actionner: 'host:webhook'}"),
            "`host:webhook` needs the parameter `url`",
        ),
        (
            rule("{action: K, actionner: 'process:freeze', parameters: {duration: soon}}"),
            "`duration` has to be seconds from 1 to 86400, found `soon`",
        ),
        (
            rule("{action: K, actionner: 'process:freeze', output: {target: 'local:file'}}"),
            "an action on this host has no `output`",
        ),
    ] {
        let problems = problems(&[&text]);
        assert!(
            problems.iter().any(|found| found.ends_with(problem)),
            "{problems:?}: {problem}"
        );
    }
}

#[test]
fn a_rule_for_every_alert_and_notifiers_are_warned_about() {
    let text =
        "- rule: R\n  notifiers: [slack]\n  actions: [{action: K, actionner: 'process:thaw'}]\n";
    let loaded = loaded(&[text], &[]);
    let codes: Vec<_> = loaded
        .diagnostics
        .iter()
        .map(|problem| problem.code)
        .collect();
    assert_eq!(codes, [Code::MatchesAll, Code::NoNotifier]);
    assert!(loaded.is_usable());
}

#[test]
fn unreadable_files_and_broken_yaml_are_errors() {
    let file = SourceFile {
        name: "gone.yaml".to_owned(),
        text: Err("no such file".to_owned()),
    };
    let loaded = load(vec![file], &[]);
    assert!(
        loaded.render().starts_with(
            "gone.yaml: error[RESPONSE_FILE_READ]: cannot read the file: no such file"
        )
    );
    let broken = problems(&["- rule: [\n"]);
    assert!(broken[0].contains("RESPONSE_YAML_PARSE"), "{broken:?}");
}

#[test]
fn rules_that_the_detector_does_not_have_are_warned_about() {
    let text = "- rule: R\n  match: {rules: [Shel in container]}\n  actions: [{action: K, actionner: 'process:thaw'}]\n";
    let mut loaded = loaded(&[text], &[]);
    loaded.check_rules(&["Shell in container", "Other"]);
    assert_eq!(
        loaded.render(),
        "0.yaml:2:19: warning[RESPONSE_UNKNOWN_RULE]: rule R: no loaded rule is called `Shel in container`\n \
         2 |   match: {rules: [Shel in container]}\n   |                   ^\n  help: did you mean `Shell in container`?\n"
    );
    assert!(loaded.is_usable());
}

/// The actions of the rule file that Falco Talon publishes, as (how it is named, actionner, parameters or output): first
/// the definitions, then those that rules write themselves.
const PUBLISHED: [(&str, &str, &str); 16] = [
    (
        "definition",
        "kubernetes:terminate",
        "parameters: {grace_period_seconds: 5, ignore_standalone_pods: true}",
    ),
    (
        "definition",
        "kubernetes:networkpolicy",
        "parameters: {allow: [192.168.1.0/24]}",
    ),
    (
        "definition",
        "cilium:networkpolicy",
        "parameters: {allow_cidr: [192.168.1.0/24]}",
    ),
    (
        "definition",
        "kubernetes:label",
        "parameters: {labels: {suspicious: 'true'}}",
    ),
    ("definition", "aws:lambda", "additional_contexts: [aws]"),
    ("definition", "gcp:function", "additional_contexts: [aws]"),
    ("rule", "kubernetes:delete", ""),
    (
        "rule",
        "calico:networkpolicy",
        "parameters: {order: 20, allow_namespaces: [green-ns]}",
    ),
    ("rule", "kubernetes:cordon", ""),
    (
        "rule",
        "kubernetes:drain",
        "parameters: {force: true, max_wait_period: 90}",
    ),
    (
        "rule",
        "kubernetes:exec",
        "parameters: {command: 'echo \"${NODE_HOSTNAME}\"'}",
    ),
    (
        "rule",
        "kubernetes:log",
        "output: {target: 'aws:s3', parameters: {bucket: b, prefix: logs/}}",
    ),
    (
        "rule",
        "kubernetes:download",
        "output: {target: 'minio:s3', parameters: {bucket: b}}",
    ),
    (
        "rule",
        "kubernetes:tcpdump",
        "parameters: {snaplen: 512, duration: 5}",
    ),
    (
        "rule",
        "kubernetes:sysdig",
        "parameters: {duration: 5, scope: pod}",
    ),
    ("rule", "kubernetes:script", "parameters: {script: 'ls'}"),
];

/// A file with these actions in the same forms.
fn published() -> String {
    let mut text = String::new();
    for (number, (place, actionner, more)) in PUBLISHED.iter().enumerate() {
        if *place == "definition" {
            text += &format!("- action: A{number}\n  actionner: {actionner}\n  {more}\n");
        }
        let own = match *place {
            "definition" => String::new(),
            _ => format!("\n      actionner: {actionner}\n      {more}"),
        };
        text += &format!(
            "- rule: R{number}\n  match:\n    rules: [Terminal shell in container]\n    output_fields:\n      \
             - k8s.ns.name!=kube-system, k8s.ns.name!=falco\n  actions:\n    - action: A{number}{own}\n"
        );
    }
    text
}

#[test]
fn each_published_actionner_is_refused_once_by_name_and_can_be_left_out() {
    let text = published();
    let loaded = loaded(&[&text], &[]);
    assert_eq!(loaded.counts(), (0, 0));
    for (_, actionner, _) in PUBLISHED {
        let about = format!("`{actionner}` is not available: ");
        let mut about = loaded
            .diagnostics
            .iter()
            .filter(|problem| problem.message.starts_with(&about));
        let problem = about.next().expect(actionner);
        assert_eq!(problem.code, Code::Unavailable);
        assert!(
            problem
                .help
                .as_ref()
                .is_some_and(|help| help.contains(actionner)),
            "{problem}"
        );
        assert!(about.next().is_none(), "{actionner} is reported twice");
    }
    assert_eq!(
        loaded.diagnostics.len(),
        PUBLISHED.len(),
        "{}",
        loaded.render()
    );
    let names: Vec<_> = PUBLISHED
        .iter()
        .map(|(_, actionner, _)| *actionner)
        .collect();
    let accepted = self::loaded(&[&text], &names);
    assert!(accepted.is_usable(), "{}", accepted.render());
    assert!(
        accepted
            .diagnostics
            .iter()
            .all(|problem| problem.code == Code::Accepted)
    );
    assert_eq!(accepted.diagnostics.len(), PUBLISHED.len());
}

#[test]
fn a_rule_whose_actions_are_left_out_still_ends_the_search() {
    let refused = "[{action: L, actionner: 'kubernetes:label'}]";
    let text = format!(
        "- rule: Except\n  match: {{rules: [A]}}\n  continue: false\n  actions: {refused}\n\
         - rule: Nothing\n  match: {{rules: [A]}}\n  actions: {refused}\n\
         - rule: Rest\n  match: {{priority: '>=Debug'}}\n  actions: [{{action: K, actionner: 'process:terminate'}}]\n"
    );
    let loaded = loaded(&[&text], &["kubernetes:label"]);
    assert!(loaded.is_usable(), "{}", loaded.render());
    assert_eq!(loaded.counts(), (2, 1));
    let rule = &loaded.responses.rules[0];
    assert_eq!(&*rule.name, "Except");
    assert!(!rule.continues && rule.actions.is_empty());
}

#[test]
fn every_actionner_of_talon_is_known() {
    // As its documentation lists them.
    const TALON: [&str; 17] = [
        "aws:lambda",
        "calico:networkpolicy",
        "cilium:networkpolicy",
        "gcp:function",
        "kubernetes:annotation",
        "kubernetes:cordon",
        "kubernetes:delete",
        "kubernetes:download",
        "kubernetes:drain",
        "kubernetes:exec",
        "kubernetes:label",
        "kubernetes:log",
        "kubernetes:networkpolicy",
        "kubernetes:script",
        "kubernetes:sysdig",
        "kubernetes:tcpdump",
        "kubernetes:terminate",
    ];
    let refused: Vec<_> = unavailable().iter().map(|refused| refused.name).collect();
    for name in TALON {
        assert!(refused.contains(&name), "{name}");
    }
    assert!(refused.is_sorted());
    assert!(host_actionners().all(|name| !refused.contains(&name)));
}

#[test]
fn only_what_is_refused_can_be_accepted() {
    for (name, problem) in [
        (
            "kubernetes:lable",
            "`kubernetes:lable` is no actionner that is refused; did you mean `kubernetes:label`?",
        ),
        (
            "host:script",
            "`host:script` is available, so there is nothing to accept",
        ),
    ] {
        let loaded = loaded(
            &[
                "- rule: R\n  match: {rules: [A]}\n  actions: [{action: K, actionner: 'process:thaw'}]\n",
            ],
            &[name],
        );
        assert_eq!(loaded.diagnostics[0].message, problem);
        assert!(!loaded.is_usable());
    }
}
