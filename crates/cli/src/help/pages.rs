//! Content of help texts and manual pages other than the options: examples, exit status, files.

use diagnostics::exit::Exit;

/// A command line and its description.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Example(pub(crate) &'static str, pub(crate) &'static str);

/// The exit codes of a verb.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Exits {
    /// 0, 2, 3 and 4.
    Plain,
    /// 0, 2, 3 and 4, and 1 with this meaning.
    Finding(&'static str),
    /// The exit codes of the command that the verb runs.
    Command,
    /// Falco's exit codes: 0, or 1 after an error.
    Falco,
}

impl Exits {
    /// Returns codes and their meanings.
    pub(crate) fn rows(self) -> Vec<(&'static str, &'static str)> {
        let plain = |code: &str| !matches!(code, "1" | "126" | "127" | "128+N");
        match self {
            Exits::Plain => Exit::MEANINGS
                .iter()
                .copied()
                .filter(|(code, _)| plain(code))
                .collect(),
            Exits::Finding(meaning) => Exit::MEANINGS
                .iter()
                .copied()
                .filter(|(code, _)| plain(code) || *code == "1")
                .map(|(code, text)| (code, if code == "1" { meaning } else { text }))
                .collect(),
            Exits::Command => Exit::MEANINGS
                .iter()
                .copied()
                .filter(|(code, _)| *code != "1")
                .chain([("N", "any other exit status of CMD")])
                .collect(),
            Exits::Falco => vec![("0", "success"), ("1", "an error")],
        }
    }
}

/// The page of one verb.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    /// Path of the verb, such as `rules check`. Empty for the program.
    pub(crate) path: &'static str,
    pub(crate) examples: &'static [Example],
    pub(crate) exits: Exits,
    /// Files that the verb reads or writes by default.
    pub(crate) files: &'static [(&'static str, &'static str)],
    /// Related pages.
    pub(crate) see_also: &'static [&'static str],
}

impl Page {
    /// Returns the page of the verb with this path.
    pub(crate) fn of(path: &str) -> Option<&'static Page> {
        PAGES.iter().find(|page| page.path == path)
    }
}

const fn page(path: &'static str, examples: &'static [Example]) -> Page {
    Page {
        path,
        examples,
        exits: Exits::Plain,
        files: &[],
        see_also: &[],
    }
}

const fn exits(page: Page, exits: Exits) -> Page {
    Page { exits, ..page }
}

const fn files(page: Page, files: &'static [(&'static str, &'static str)]) -> Page {
    Page { files, ..page }
}

const fn see(page: Page, see_also: &'static [&'static str]) -> Page {
    Page { see_also, ..page }
}

const CERTIFICATES: &[(&str, &str)] = &[(
    "/etc/falco/certs",
    "default folder of the certificates and keys of TLS connections to a detector",
)];

const CONFIG_FILES: &[(&str, &str)] = &[
    (
        "/etc/tollgate/config.yaml",
        "configuration of all runs on this machine",
    ),
    (
        "~/.config/tollgate/config.yaml",
        "configuration of the user; $XDG_CONFIG_HOME replaces ~/.config",
    ),
    (
        "/etc/tollgate/rules.d/*.yaml",
        "rules of this machine (*.yml, too), loaded after the built-in ones in the order of their names",
    ),
];

const COLLECTOR_FILES: &[(&str, &str)] = &[
    ("/var/lib/tollgate/collector.db", "the default store"),
    (
        "collector.crt, collector.key",
        "the certificate that the collector makes, beside its store",
    ),
];

const RUNTIME_FILES: &[(&str, &str)] = &[
    ("/etc/tollgate/runtime.yaml", "default configuration"),
    (
        "/etc/tollgate/policies/NAME.yaml",
        "policies that containers name",
    ),
    (
        "/var/log/tollgate/alerts.jsonl",
        "alerts, if no output is configured",
    ),
];

const ARTIFACT_FILES: &[(&str, &str)] = &[
    ("/etc/tollgate/rules.d", "folder of installed rules"),
    (
        "/etc/tollgate/rules.d/.artifacts/state.json",
        "versions, digests and signers of what is installed",
    ),
];

/// All pages.
pub(crate) const PAGES: &[Page] = &[
    see(
        exits(
            page(
                "",
                &[
                    Example(
                        "tollgate run -- curl https://example.org",
                        "watch one command",
                    ),
                    Example("sudo tollgate watch", "watch the whole host"),
                    Example(
                        "tollgate enforce --policy web.yaml -- ./server",
                        "confine a command by a policy",
                    ),
                    Example("tollgate doctor", "show what works on this machine"),
                ],
            ),
            Exits::Command,
        ),
        &["run", "watch", "enforce", "doctor"],
    ),
    see(
        exits(
            page(
                "run",
                &[
                    Example(
                        "tollgate run -- make install",
                        "watch a build with the built-in rules; alerts go to stderr",
                    ),
                    Example(
                        "tollgate run --log alerts.log -- ./export > dump.sql",
                        "write alerts to a file; the output is the command's alone",
                    ),
                    Example(
                        "tollgate run -r my_rules.yaml --json -- ./server",
                        "use your own rules, and print alerts as JSON",
                    ),
                    Example(
                        "tollgate run --policy web.yaml -w calls.scap -- ./server",
                        "deny what the policy forbids, and record the events",
                    ),
                ],
            ),
            Exits::Command,
        ),
        &["watch", "enforce", "replay", "rules"],
    ),
    see(
        exits(
            page(
                "guard",
                &[
                    Example(
                        "tollgate guard -- claude",
                        "let a coding agent work in the current folder",
                    ),
                    Example(
                        "tollgate guard --preset install -- npm install",
                        "install packages whose scripts are not trusted",
                    ),
                    Example(
                        "tollgate guard --preset build --report-fd 3 -- make 3>denials.jsonl",
                        "build without a network, and write denials as JSON",
                    ),
                ],
            ),
            Exits::Command,
        ),
        &["guard explain", "guard learn", "enforce", "learn"],
    ),
    see(
        page(
            "guard explain",
            &[
                Example("tollgate guard explain", "show the box of a coding agent"),
                Example(
                    "tollgate guard explain --preset install -- npm",
                    "show the box of an npm install",
                ),
            ],
        ),
        &["guard"],
    ),
    see(
        exits(
            page(
                "guard learn",
                &[
                    Example(
                        "tollgate guard learn -- make",
                        "run a build, and print the options that it needs",
                    ),
                    Example(
                        "tollgate guard learn -- npm install",
                        "find the box of an install",
                    ),
                ],
            ),
            Exits::Command,
        ),
        &["guard"],
    ),
    see(
        exits(
            page(
                "enforce",
                &[
                    Example(
                        "tollgate enforce --policy web.yaml -- ./server",
                        "deny what the policy forbids",
                    ),
                    Example(
                        "tollgate enforce --policy web.yaml --audit -- ./server",
                        "report violations without denying anything",
                    ),
                ],
            ),
            Exits::Command,
        ),
        &["run", "policy", "learn"],
    ),
    see(
        exits(
            page(
                "learn",
                &[
                    Example(
                        "tollgate learn -o web.yaml -- ./server",
                        "write a policy from one run",
                    ),
                    Example(
                        "tollgate learn -o web.yaml --model web.model -- ./server",
                        "add this run to the behaviour of earlier runs",
                    ),
                ],
            ),
            Exits::Command,
        ),
        &["enforce", "policy advise"],
    ),
    see(
        exits(
            page(
                "watch",
                &[
                    Example("sudo tollgate watch", "watch all processes of the host"),
                    Example(
                        "sudo tollgate watch --container web --json",
                        "watch one container",
                    ),
                    Example(
                        "sudo tollgate watch --responses responses.yaml --responses-dry-run",
                        "report what responses to alerts would do",
                    ),
                    Example(
                        "tollgate watch --engine ptrace -p 4711",
                        "watch one process without root",
                    ),
                ],
            ),
            Exits::Finding("too many events were lost, and the configuration ends the watch then"),
        ),
        &["run", "doctor", "rules"],
    ),
    see(
        page(
            "top",
            &[
                Example("sudo tollgate top", "watch all processes of the host"),
                Example(
                    "sudo tollgate top -p 4711",
                    "watch one process and its children",
                ),
                Example("tollgate top calls.scap", "look at a capture"),
            ],
        ),
        &["watch", "replay", "rules explain"],
    ),
    see(
        page(
            "replay",
            &[
                Example(
                    "tollgate replay attack.scap",
                    "print the alerts of a capture",
                ),
                Example(
                    "tollgate replay attack.scap -r my_rules.yaml --stats",
                    "evaluate your own rules, and print counts and rates",
                ),
                Example(
                    "tollgate replay attack.scap -p '%proc.name %evt.type' --filter 'evt.failed=true'",
                    "print the failed calls",
                ),
            ],
        ),
        &["run", "rules test"],
    ),
    see(
        files(
            exits(
                page(
                    "falco",
                    &[
                        Example(
                            "tollgate falco -c falco.yaml -r my_rules.yaml",
                            "watch the host as falco does",
                        ),
                        Example("tollgate falco -V my_rules.yaml", "validate a rule file"),
                        Example(
                            "tollgate falco --list=syscall",
                            "list the fields of system calls",
                        ),
                    ],
                ),
                Exits::Falco,
            ),
            &[("/etc/falco/falco.yaml", "default configuration")],
        ),
        &["watch", "replay", "rules check"],
    ),
    see(
        page(
            "artifact",
            &[
                Example(
                    "sudo tollgate artifact install ghcr.io/example/web:1.2.0 --key web.pub",
                    "verify rules of a registry, run their tests, and install them",
                ),
                Example(
                    "tollgate artifact verify ghcr.io/example/web:1.2.0 --key web.pub",
                    "only verify them",
                ),
            ],
        ),
        &["artifact install", "artifact push", "rules test"],
    ),
    see(
        page(
            "artifact search",
            &[
                Example(
                    "tollgate artifact search nginx --index index.yaml",
                    "list what an index has about nginx",
                ),
                Example(
                    "tollgate artifact search --index index.yaml --json",
                    "print the whole index as JSON",
                ),
            ],
        ),
        &["artifact install"],
    ),
    see(
        files(
            page(
                "artifact install",
                &[
                    Example(
                        "sudo tollgate artifact install ghcr.io/example/web:1.2.0 --key web.pub",
                        "install a version that this key signed",
                    ),
                    Example(
                        "sudo tollgate artifact install web --index index.yaml --key web.pub",
                        "look the place up in an index, with what it needs",
                    ),
                    Example(
                        "tollgate artifact install localhost:5000/web:2 --plain-http --allow-unsigned",
                        "install from a registry on this machine, for a test",
                    ),
                ],
            ),
            ARTIFACT_FILES,
        ),
        &["artifact follow", "artifact verify", "rules check"],
    ),
    see(
        files(
            page(
                "artifact follow",
                &[
                    Example(
                        "sudo tollgate artifact follow ghcr.io/example/web:1 --key web.pub",
                        "install newer versions of a tag, every six hours",
                    ),
                    Example(
                        "tollgate artifact follow web --index index.yaml --key web.pub --every 10m",
                        "look every ten minutes",
                    ),
                ],
            ),
            ARTIFACT_FILES,
        ),
        &["artifact install"],
    ),
    see(
        page(
            "artifact verify",
            &[
                Example(
                    "tollgate artifact verify ghcr.io/example/web:1.2.0 --key web.pub",
                    "verify the signature and each digest",
                ),
                Example(
                    "tollgate artifact verify r.io/web:1.0.0 --layout out --key web.pub",
                    "verify what was written to a folder",
                ),
            ],
        ),
        &["artifact install"],
    ),
    see(
        page(
            "artifact push",
            &[
                Example(
                    "tollgate artifact push ghcr.io/example/web:1.2.0 web.yaml --sign-key web.key",
                    "publish and sign a rule file",
                ),
                Example(
                    "tollgate artifact push r.io/web:1.2.0 web.yaml --test web_test.yaml --add-tag 1",
                    "publish it with its tests, under a second tag",
                ),
                Example(
                    "tollgate artifact push r.io/web:1.2.0 web.yaml --layout out",
                    "write it to a folder, from which other tools publish it",
                ),
            ],
        ),
        &["artifact verify", "rules test"],
    ),
    see(
        page(
            "config",
            &[
                Example(
                    "tollgate config show",
                    "show the effective value of each key, and its origin",
                ),
                Example(
                    "tollgate config check",
                    "check the files that every run reads",
                ),
            ],
        ),
        &["config show", "config check", "run"],
    ),
    see(
        files(
            page(
                "config show",
                &[
                    Example(
                        "tollgate config show --changed",
                        "show the keys that a file sets",
                    ),
                    Example(
                        "tollgate config show -c my.yaml -o outputs.rate=5 --json",
                        "show what a run with these options uses, for a program",
                    ),
                ],
            ),
            CONFIG_FILES,
        ),
        &["config check", "run"],
    ),
    see(
        files(
            page(
                "config check",
                &[
                    Example(
                        "tollgate config check",
                        "check the files that every run reads",
                    ),
                    Example("tollgate config check my.yaml", "check one file"),
                ],
            ),
            CONFIG_FILES,
        ),
        &["config show", "rules check"],
    ),
    see(
        page(
            "rules",
            &[
                Example(
                    "tollgate rules check my_rules.yaml",
                    "check a file for errors",
                ),
                Example("tollgate rules list", "list the built-in rules"),
                Example(
                    "tollgate rules fields --class proc",
                    "list fields for conditions",
                ),
            ],
        ),
        &[
            "rules check",
            "rules list",
            "rules fields",
            "rules events",
            "rules explain",
            "rules test",
            "rules silence",
            "rules coverage",
            "rules convert",
            "rules lint",
            "rules cost",
        ],
    ),
    see(
        page(
            "rules check",
            &[
                Example("tollgate rules check my_rules.yaml", "check one file"),
                Example(
                    "tollgate rules check --add-rules my_changes.yaml",
                    "check a file that changes the built-in rules",
                ),
                Example(
                    "tollgate rules check --json base.yaml local.yaml",
                    "check two files that are loaded together, for a program",
                ),
            ],
        ),
        &["rules lint", "rules test"],
    ),
    see(
        page(
            "rules list",
            &[
                Example("tollgate rules list", "list the built-in rules"),
                Example(
                    "tollgate rules list -l 'Read sensitive file untrusted'",
                    "show one rule in full",
                ),
            ],
        ),
        &["rules check", "rules explain"],
    ),
    see(
        page(
            "rules fields",
            &[
                Example("tollgate rules fields", "list all fields"),
                Example(
                    "tollgate rules fields --class fd --json",
                    "list those of descriptors as JSON",
                ),
            ],
        ),
        &["rules events"],
    ),
    see(
        page(
            "rules events",
            &[
                Example("tollgate rules events", "list all event types"),
                Example("tollgate rules events --json", "list them as JSON"),
            ],
        ),
        &["rules fields"],
    ),
    see(
        page(
            "rules explain",
            &[
                Example(
                    "tollgate rules explain",
                    "show the calls that the built-in rules need",
                ),
                Example(
                    "tollgate rules explain --call openat",
                    "show the rules that need one call",
                ),
                Example(
                    "tollgate rules explain --event alert.json --rule 'Run shell untrusted'",
                    "show each clause of a rule for one event",
                ),
                Example(
                    "tail -n 1 alerts.jsonl | tollgate rules explain --alert -",
                    "tell what the last alert means and what to check next",
                ),
            ],
        ),
        &["rules cost", "rules lint"],
    ),
    see(
        files(
            page(
                "rules silence",
                &[
                    Example(
                        "tollgate rules silence --dry-run alert.json",
                        "list exceptions for an alert",
                    ),
                    Example(
                        "tail -n 1 alerts.jsonl | sudo tollgate rules silence",
                        "choose one, and write it for all runs",
                    ),
                    Example(
                        "tollgate rules silence --choose 2 --against old.scap --output my.yaml alert.json",
                        "write the second one to a file, and count what it silences in a capture",
                    ),
                ],
            ),
            &[(
                "/etc/tollgate/rules.d",
                "folder of the exceptions, with their tests in the folder tests",
            )],
        ),
        &["rules test", "rules explain"],
    ),
    see(
        page(
            "rules coverage",
            &[
                Example(
                    "tollgate rules coverage",
                    "the techniques that the rules of `tollgate run` are about",
                ),
                Example(
                    "tollgate rules coverage --navigator falco_rules.yaml > layer.json",
                    "a layer to open in the ATT&CK Navigator",
                ),
            ],
        ),
        &["rules list", "rules lint"],
    ),
    see(
        page(
            "rules convert",
            &[
                Example(
                    "tollgate rules convert --from sigma rules/linux > sigma.yaml",
                    "convert a folder of Sigma rules",
                ),
                Example("tollgate rules check sigma.yaml", "check what came out"),
            ],
        ),
        &["rules check", "run"],
    ),
    see(
        exits(
            page(
                "rules test",
                &[
                    Example(
                        "tollgate rules test my_tests.yaml",
                        "run the tests of a file",
                    ),
                    Example(
                        "tollgate rules test -r my_rules.yaml --json my_tests.yaml",
                        "run them against other rules, for a program",
                    ),
                ],
            ),
            Exits::Finding("a test failed"),
        ),
        &["rules explain", "replay"],
    ),
    see(
        exits(
            page(
                "rules lint",
                &[
                    Example(
                        "tollgate rules lint my_rules.yaml",
                        "look for rules that never alert",
                    ),
                    Example(
                        "tollgate rules lint --engine ebpf my_rules.yaml",
                        "check for one capture engine only",
                    ),
                ],
            ),
            Exits::Finding("there is a finding"),
        ),
        &["rules check", "rules cost"],
    ),
    see(
        page(
            "rules cost",
            &[
                Example(
                    "tollgate rules cost",
                    "estimate the cost of the built-in rules",
                ),
                Example(
                    "tollgate rules cost --capture calls.scap my_rules.yaml",
                    "count and time the events of a capture",
                ),
            ],
        ),
        &["rules explain", "bench compare"],
    ),
    see(
        page(
            "policy",
            &[
                Example("tollgate policy init web.yaml", "write a starting policy"),
                Example("tollgate policy list", "list the built-in rules"),
                Example("tollgate policy check web.yaml", "check a file for errors"),
                Example(
                    "tollgate policy explain web.yaml",
                    "show what a policy compiles to",
                ),
            ],
        ),
        &[
            "policy init",
            "policy list",
            "policy check",
            "policy explain",
            "policy convert",
            "policy advise",
            "policy loaded",
            "policy replace",
            "enforce",
            "learn",
        ],
    ),
    see(
        page(
            "policy init",
            &[
                Example("tollgate policy init", "write policy.yaml for any command"),
                Example(
                    "tollgate policy init --kind service web.yaml",
                    "write one for a network server",
                ),
            ],
        ),
        &["policy check", "policy explain", "enforce", "learn"],
    ),
    see(
        page(
            "policy list",
            &[
                Example("tollgate policy list", "list all built-in rules"),
                Example("tollgate policy list disable-tcp", "show one rule in full"),
            ],
        ),
        &["policy explain"],
    ),
    see(
        page(
            "policy check",
            &[
                Example("tollgate policy check web.yaml", "check one file"),
                Example(
                    "tollgate policy check --accept-partial disallow-mount web.yaml",
                    "accept that one rule is enforced only partially",
                ),
            ],
        ),
        &["policy explain", "enforce"],
    ),
    see(
        page(
            "policy convert",
            &[
                Example(
                    "tollgate policy convert kubearmor.yaml",
                    "convert a policy, and show how each rule is converted",
                ),
                Example(
                    "tollgate policy convert --target Deployment/web seccomp.yaml",
                    "convert a profile that names no workload",
                ),
                Example(
                    "tollgate policy convert --to-model shop/web model.json",
                    "write what `tollgate learn` recorded as a model of vArmor",
                ),
                Example(
                    "tollgate policy convert --accept-partial 'spec.file.matchPaths[1]' ksp.yaml",
                    "leave one rule out that cannot be converted",
                ),
            ],
        ),
        &["policy check", "policy explain"],
    ),
    see(
        page(
            "policy explain",
            &[
                Example(
                    "tollgate policy explain web.yaml",
                    "show how far each rule is enforced",
                ),
                Example(
                    "tollgate policy explain --long web.yaml",
                    "show what each rule compiles to, and its gaps",
                ),
                Example(
                    "tollgate policy explain --enforcer seccomp web.yaml",
                    "show the compiled seccomp profile",
                ),
            ],
        ),
        &["policy check", "policy list"],
    ),
    see(
        page(
            "policy advise",
            &[
                Example(
                    "tollgate policy advise web.model",
                    "show the rules that a workload does not break",
                ),
                Example(
                    "tollgate policy advise --enforcer SeccompLandlock --json web.model",
                    "consider two enforcers only, and print JSON",
                ),
            ],
        ),
        &["learn", "policy list"],
    ),
    see(
        page(
            "policy loaded",
            &[
                Example("sudo tollgate policy loaded", "list the policies in force"),
                Example(
                    "sudo tollgate policy loaded --sweep",
                    "remove unused ones first",
                ),
            ],
        ),
        &["policy replace"],
    ),
    see(
        page(
            "policy replace",
            &[
                Example(
                    "sudo tollgate policy replace web.yaml",
                    "load the new version of a policy",
                ),
                Example(
                    "sudo tollgate policy replace --accept-partial disallow-mount web.yaml",
                    "accept that one rule is enforced only partially",
                ),
            ],
        ),
        &["policy loaded", "policy check"],
    ),
    see(
        files(
            page(
                "runtime",
                &[
                    Example(
                        "tollgate runtime install docker",
                        "show how docker's configuration would change",
                    ),
                    Example("sudo tollgate runtime install docker --yes", "change it"),
                    Example(
                        "docker run --runtime tollgate alpine true",
                        "run a watched container",
                    ),
                ],
            ),
            RUNTIME_FILES,
        ),
        &["run", "policy", "watch"],
    ),
    see(
        page(
            "node",
            &[
                Example(
                    "tollgate node --runtime-handler tollgate --listen 127.0.0.1:9465",
                    "in a pod of the node: the service account leads to the API server",
                ),
                Example(
                    "sudo tollgate node --name worker-1 --namespace tollgate --kubeconfig node.conf",
                    "outside a pod",
                ),
                Example(
                    "tollgate node --runtime-handler tollgate --behavior-modeling",
                    "record what containers of policies in the mode BehaviorModeling do",
                ),
                Example(
                    "tollgate node --runtime-handler tollgate --detect",
                    "watch the node, too, by the built-in rules and the Rulesfiles of the installation",
                ),
            ],
        ),
        &["runtime", "policy"],
    ),
    see(
        page(
            "doctor",
            &[
                Example("tollgate doctor", "show what works here"),
                Example(
                    "sudo tollgate doctor --json",
                    "show what works for root, as JSON",
                ),
            ],
        ),
        &["run", "watch", "enforce"],
    ),
    see(
        exits(
            page(
                "demo",
                &[
                    Example("tollgate demo", "show the tour"),
                    Example("tollgate demo --json", "print only its summary"),
                ],
            ),
            Exits::Finding("an alert is missing, or an event was dropped"),
        ),
        &["generate", "run"],
    ),
    see(
        page(
            "generate",
            &[
                Example("tollgate generate list --long", "list the actions"),
                Example(
                    "tollgate generate run ^syscall.ReadSensitive",
                    "perform some of them",
                ),
                Example(
                    "tollgate generate test --watched",
                    "check that tollgate alerts on each",
                ),
            ],
        ),
        &[
            "generate list",
            "generate run",
            "generate test",
            "generate bench",
            "generate suite",
        ],
    ),
    see(
        page(
            "generate list",
            &[
                Example("tollgate generate list", "list the actions"),
                Example(
                    "tollgate generate list --all --json",
                    "list all of them, as JSON",
                ),
            ],
        ),
        &["generate run"],
    ),
    see(
        exits(
            page(
                "generate run",
                &[
                    Example(
                        "tollgate generate run ^syscall.Write",
                        "perform the actions that write files",
                    ),
                    Example(
                        "tollgate generate run --loop --sleep 1s",
                        "perform all, again and again",
                    ),
                ],
            ),
            Exits::Finding("an action failed"),
        ),
        &["generate list", "generate test"],
    ),
    see(
        files(
            exits(
                page(
                    "generate test",
                    &[
                        Example("tollgate generate test --watched", "test `tollgate run`"),
                        Example(
                            "tollgate generate test --http-server-address 127.0.0.1:2801",
                            "test a detector that sends alerts to this address",
                        ),
                        Example(
                            "tollgate generate test --alerts-file /var/log/falco.json ^syscall",
                            "test a detector that writes alerts to a file",
                        ),
                    ],
                ),
                Exits::Finding("an action failed, or an alert is missing"),
            ),
            CERTIFICATES,
        ),
        &["generate run", "generate bench"],
    ),
    see(
        files(
            exits(
                page(
                    "generate bench",
                    &[
                        Example(
                            "tollgate generate bench --knee --alerts-file alerts.json ^syscall.Read",
                            "raise the rate until alerts are lost",
                        ),
                        Example(
                            "tollgate generate bench --rounds 3 --pid 4711 --logformat table",
                            "measure the CPU time and memory of a detector",
                        ),
                    ],
                ),
                Exits::Finding("no round could be measured"),
            ),
            CERTIFICATES,
        ),
        &["generate test", "bench"],
    ),
    see(
        page(
            "generate suite",
            &[
                Example(
                    "tollgate generate suite explain",
                    "show the keys of a test file",
                ),
                Example(
                    "tollgate generate suite test -f my_tests.yaml",
                    "run tests against a detector",
                ),
            ],
        ),
        &[
            "generate suite explain",
            "generate suite run",
            "generate suite test",
        ],
    ),
    see(
        page(
            "generate suite explain",
            &[
                Example("tollgate generate suite explain", "show all keys"),
                Example(
                    "tollgate generate suite explain tests.steps",
                    "show one key",
                ),
            ],
        ),
        &["generate suite run"],
    ),
    see(
        exits(
            page(
                "generate suite run",
                &[
                    Example(
                        "tollgate generate suite run -f my_tests.yaml",
                        "run the tests of a file",
                    ),
                    Example(
                        "tollgate generate suite run -d tests --report-format json",
                        "run those of a folder, and print JSON",
                    ),
                ],
            ),
            Exits::Finding("a test failed"),
        ),
        &["generate suite test"],
    ),
    see(
        files(
            exits(
                page(
                    "generate suite test",
                    &[
                        Example(
                            "tollgate generate suite test -f my_tests.yaml --watched",
                            "test `tollgate run`",
                        ),
                        Example(
                            "tollgate generate suite test -d tests --http-server-address 127.0.0.1:2801",
                            "test a detector that sends alerts to this address",
                        ),
                    ],
                ),
                Exits::Finding("a test failed"),
            ),
            CERTIFICATES,
        ),
        &["generate suite run", "generate test"],
    ),
    see(
        page(
            "bench",
            &[
                Example(
                    "tollgate bench -- make -j2",
                    "compare a command with and without watching",
                ),
                Example(
                    "tollgate bench quick",
                    "measure `tollgate run` in three minutes",
                ),
                Example(
                    "tollgate bench unix --list",
                    "list workloads and subjects of a suite",
                ),
                Example(
                    "tollgate bench report results/2026-01-31-unix",
                    "write the summary of a run again",
                ),
            ],
        ),
        &[
            "bench quick",
            "bench unix",
            "bench os",
            "bench syscalls",
            "bench lifecycle",
            "bench engine",
            "bench apps",
            "bench compare",
            "bench report",
        ],
    ),
    bench(
        "bench quick",
        &[
            Example(
                "tollgate bench quick",
                "compare `tollgate run` with a native run",
            ),
            Example(
                "tollgate bench quick --subject 'strace=strace -f -o /dev/null {}'",
                "measure another command",
            ),
        ],
    ),
    bench(
        "bench unix",
        &[
            Example("tollgate bench unix", "run all twelve tests"),
            Example(
                "tollgate bench unix --workload execl --rounds 6",
                "run one of them",
            ),
        ],
    ),
    bench(
        "bench os",
        &[
            Example("tollgate bench os", "run all five operations"),
            Example(
                "tollgate bench os --quick --json",
                "check that they work, and print JSON",
            ),
        ],
    ),
    bench(
        "bench syscalls",
        &[
            Example("tollgate bench syscalls", "measure all calls"),
            Example(
                "tollgate bench syscalls --quick --workload getpid",
                "check one of them",
            ),
        ],
    ),
    bench(
        "bench lifecycle",
        &[
            Example(
                "sudo tollgate bench lifecycle",
                "measure all installed runtimes",
            ),
            Example("tollgate bench lifecycle --list", "list them"),
        ],
    ),
    bench(
        "bench engine",
        &[
            Example("tollgate bench engine", "measure all parts"),
            Example(
                "tollgate bench engine --workload replay",
                "measure replay only",
            ),
        ],
    ),
    bench(
        "bench apps",
        &[
            Example(
                "tollgate bench apps",
                "measure the servers that are installed",
            ),
            Example(
                "tollgate bench apps --workload redis",
                "measure one of them",
            ),
        ],
    ),
    bench(
        "bench compare",
        &[
            Example(
                "tollgate bench compare --plan plan.toml --out after",
                "run a plan",
            ),
            Example("tollgate bench compare before after", "compare two runs"),
        ],
    ),
    bench(
        "bench report",
        &[
            Example(
                "tollgate bench report results/2026-01-31-unix",
                "write the summary again",
            ),
            Example(
                "tollgate bench report --fail-if 'index<0.9' results/2026-01-31-unix",
                "fail if the run was too slow",
            ),
        ],
    ),
    see(
        files(
            page(
                "serve",
                &[
                    Example("tollgate serve", "collect from this machine alone"),
                    Example(
                        "tollgate serve --listen 0.0.0.0:6443 --tls-cert c.pem --tls-key k.pem --max-age 90d",
                        "collect from everywhere, and keep alerts for 90 days",
                    ),
                    Example(
                        "tollgate serve --agent-ca agents.pem --agent-crl revoked.pem",
                        "take agents by client certificates, too, but not revoked ones",
                    ),
                ],
            ),
            COLLECTOR_FILES,
        ),
        &["serve token", "serve user", "serve bundle", "serve backup"],
    ),
    see(
        page(
            "serve token",
            &[
                Example(
                    "tollgate serve token create --agent-class web --expires 30d",
                    "let agents send for 30 days",
                ),
                Example("tollgate serve token list", "list the tokens"),
            ],
        ),
        &["serve"],
    ),
    see(
        page(
            "serve token create",
            &[
                Example(
                    "tollgate serve token create --agent-class web > token",
                    "write a token of agents to a file",
                ),
                Example(
                    "tollgate serve token create --role operator --expires 12h",
                    "let someone read and acknowledge alerts today",
                ),
            ],
        ),
        &["serve token list", "serve token revoke"],
    ),
    see(
        page(
            "serve token list",
            &[
                Example("tollgate serve token list", "list the tokens"),
                Example("tollgate serve token list --json", "list them as JSON"),
            ],
        ),
        &["serve token create"],
    ),
    see(
        page(
            "serve token revoke",
            &[
                Example(
                    "tollgate serve token revoke 3",
                    "end token 3 and its agents",
                ),
                Example(
                    "tollgate serve token revoke 3 --store sqlite:fleet.db",
                    "end it in another store",
                ),
            ],
        ),
        &["serve token list"],
    ),
    see(
        page(
            "serve bundle",
            &[
                Example(
                    "tollgate serve bundle key web.key > web.pub",
                    "make a key, and the public key that agents pin",
                ),
                Example(
                    "tollgate serve bundle list",
                    "list bundles, and how far their roll-outs are",
                ),
            ],
        ),
        &["serve", "serve token"],
    ),
    see(
        page(
            "serve bundle key",
            &[
                Example(
                    "tollgate serve bundle key web.key",
                    "write a private key, and print the public one",
                ),
                Example(
                    "tollgate serve bundle key web.key > web.pub",
                    "write the public key to a file",
                ),
            ],
        ),
        &["serve bundle sign"],
    ),
    see(
        page(
            "serve bundle create",
            &[
                Example(
                    "tollgate serve bundle create --version 7 --output web.bundle web.yaml",
                    "put a rule file into a bundle",
                ),
                Example(
                    "tollgate serve bundle create --version 8 --output web.bundle -o outputs.rate=5 web.yaml",
                    "with a setting for the agents",
                ),
                Example(
                    "tollgate serve bundle create --version 9 --output web.bundle --policy web-policy.yaml",
                    "put a policy alone into a bundle",
                ),
            ],
        ),
        &["serve bundle sign", "rules check", "policy check"],
    ),
    see(
        page(
            "serve bundle sign",
            &[
                Example(
                    "tollgate serve bundle sign web.bundle --key web.key",
                    "sign a bundle",
                ),
                Example(
                    "tollgate serve bundle sign web.bundle --key /run/keys/web.key",
                    "sign it with a key on another file system",
                ),
            ],
        ),
        &["serve bundle key", "serve bundle assign"],
    ),
    see(
        page(
            "serve bundle assign",
            &[
                Example(
                    "tollgate serve bundle assign web.bundle --agent-class web --percent 10",
                    "hand it to a tenth of the agents",
                ),
                Example(
                    "tollgate serve bundle assign web.bundle --agent-class web --max-alerts 60",
                    "to all, and halt beyond 60 alerts of each in a minute",
                ),
            ],
        ),
        &["serve bundle sign", "serve bundle rollback"],
    ),
    see(
        page(
            "serve bundle rollback",
            &[
                Example(
                    "tollgate serve bundle rollback --agent-class web",
                    "hand the agents the bundle before",
                ),
                Example(
                    "tollgate serve bundle rollback --agent-class web --store sqlite:fleet.db",
                    "in another store",
                ),
            ],
        ),
        &["serve bundle assign"],
    ),
    see(
        page(
            "serve bundle unassign",
            &[
                Example(
                    "tollgate serve bundle unassign --agent-class web --selector tier=db",
                    "end the roll-out for these agents; they get what the next one gives",
                ),
                Example(
                    "tollgate serve bundle unassign --agent-class web --store sqlite:fleet.db",
                    "in another store",
                ),
            ],
        ),
        &["serve bundle assign"],
    ),
    see(
        page(
            "serve bundle list",
            &[
                Example("tollgate serve bundle list", "list bundles and roll-outs"),
                Example("tollgate serve bundle list --json", "list them as JSON"),
            ],
        ),
        &["serve bundle assign"],
    ),
    see(
        page(
            "serve user",
            &[
                Example(
                    "tollgate serve user add ann --role operator",
                    "let ann use the page",
                ),
                Example("tollgate serve user list", "list the users"),
            ],
        ),
        &["serve", "serve token"],
    ),
    see(
        page(
            "serve user add",
            &[
                Example(
                    "tollgate serve user add ann --role operator",
                    "add ann, and print a password for her",
                ),
                Example(
                    "tollgate serve user add bob --role viewer --password-file pw",
                    "add bob with the password in a file",
                ),
            ],
        ),
        &["serve user list", "serve user passwd"],
    ),
    see(
        page(
            "serve user list",
            &[
                Example("tollgate serve user list", "list the users"),
                Example("tollgate serve user list --json", "list them as JSON"),
            ],
        ),
        &["serve user add"],
    ),
    see(
        page(
            "serve user remove",
            &[
                Example(
                    "tollgate serve user remove ann",
                    "remove ann, who is logged out",
                ),
                Example(
                    "tollgate serve user remove ann --store sqlite:fleet.db",
                    "remove her from another store",
                ),
            ],
        ),
        &["serve user list"],
    ),
    see(
        page(
            "serve user passwd",
            &[
                Example(
                    "tollgate serve user passwd ann",
                    "make a new password for ann and print it",
                ),
                Example(
                    "tollgate serve user passwd ann --password-file -",
                    "read it from the standard input",
                ),
            ],
        ),
        &["serve user add"],
    ),
    see(
        page(
            "serve backup",
            &[
                Example(
                    "tollgate serve backup monday.db",
                    "copy the store while it is used",
                ),
                Example(
                    "tollgate serve backup --store sqlite:fleet.db monday.db",
                    "copy another store",
                ),
            ],
        ),
        &["serve restore"],
    ),
    see(
        page(
            "serve restore",
            &[
                Example(
                    "tollgate serve restore monday.db --store sqlite:fleet.db",
                    "make a new store of a backup",
                ),
                Example(
                    "tollgate serve restore monday.db",
                    "make the default store of it, where none is",
                ),
            ],
        ),
        &["serve backup"],
    ),
    see(
        page(
            "alerts",
            &[
                Example("tollgate alerts list", "list what is new"),
                Example(
                    "tollgate alerts export --format csv > alerts.csv",
                    "export all alerts for a spreadsheet",
                ),
            ],
        ),
        &["serve", "fleet"],
    ),
    see(
        page(
            "alerts list",
            &[
                Example(
                    "tollgate alerts list --severity Error --host web-1",
                    "list severe alerts of one host in groups",
                ),
                Example(
                    "tollgate alerts list --each --text shadow --json",
                    "search in messages, and print JSON",
                ),
            ],
        ),
        &["alerts show", "alerts ack"],
    ),
    see(
        page(
            "alerts show",
            &[
                Example("tollgate alerts show 4711", "show an alert with its fields"),
                Example("tollgate alerts show 4711 --json", "show it as JSON"),
            ],
        ),
        &["alerts list"],
    ),
    see(
        page(
            "alerts ack",
            &[
                Example(
                    "tollgate alerts ack 7 --note 'the backup reads it'",
                    "acknowledge group 7",
                ),
                Example("tollgate alerts ack 7 --undo", "take that back"),
            ],
        ),
        &["alerts list"],
    ),
    see(
        page(
            "alerts export",
            &[
                Example(
                    "tollgate alerts export --from 2026-01-02T00:00:00Z > day.jsonl",
                    "export alerts as their senders wrote them",
                ),
                Example(
                    "tollgate alerts export --format csv --rule 'Policy violation' > violations.csv",
                    "export the alerts of one rule for a spreadsheet",
                ),
            ],
        ),
        &["alerts list"],
    ),
    see(
        page(
            "fleet",
            &[
                Example("tollgate fleet status", "list the agents of a collector"),
                Example(
                    "tollgate fleet capture 3 --seconds 10",
                    "record ten seconds of the events of number 3",
                ),
            ],
        ),
        &["alerts", "serve"],
    ),
    see(
        page(
            "fleet capture",
            &[
                Example(
                    "tollgate fleet capture 3",
                    "record ten seconds of the events of number 3",
                ),
                Example(
                    "tollgate fleet capture 3 --seconds 60 --token-file operator",
                    "for a minute, with the token in another file",
                ),
            ],
        ),
        &["fleet captures", "fleet download"],
    ),
    see(
        page(
            "fleet captures",
            &[
                Example("tollgate fleet captures", "list captures and their states"),
                Example("tollgate fleet captures --json", "list them as JSON"),
            ],
        ),
        &["fleet capture", "fleet download"],
    ),
    see(
        page(
            "fleet download",
            &[
                Example(
                    "tollgate fleet download 7 web.scap",
                    "write capture 7 to a file for `sysdig -r` or `tollgate replay`",
                ),
                Example(
                    "tollgate fleet download 7 web.scap --collector https://fleet:6443 --token-file operator",
                    "from another collector",
                ),
            ],
        ),
        &["fleet captures", "replay"],
    ),
    see(
        page(
            "fleet status",
            &[
                Example(
                    "tollgate fleet status",
                    "list the agents of the collector in TOLLGATE_COLLECTOR",
                ),
                Example(
                    "tollgate fleet status --collector https://fleet:6443 --token-file viewer",
                    "list those of another",
                ),
            ],
        ),
        &["alerts list"],
    ),
    see(
        page(
            "completions",
            &[
                Example(
                    "tollgate completions bash > /etc/bash_completion.d/tollgate",
                    "install completions for bash",
                ),
                Example(
                    "tollgate completions fish > ~/.config/fish/completions/tollgate.fish",
                    "install completions for fish",
                ),
            ],
        ),
        &["man"],
    ),
    see(
        page(
            "copy",
            &[
                Example(
                    "tollgate copy /shared",
                    "write /shared/tollgate, in a container that runs before the watched one",
                ),
                Example(
                    "podman run -v bin:/shared tollgate copy /shared",
                    "copy it from the image into a volume",
                ),
            ],
        ),
        &["run"],
    ),
    see(
        page(
            "man",
            &[
                Example("tollgate man run | man -l -", "show the page of a verb"),
                Example(
                    "tollgate man -o /usr/local/share/man/man1",
                    "install all pages",
                ),
            ],
        ),
        &["help"],
    ),
    see(
        page(
            "help",
            &[
                Example("tollgate help run", "show the options of a verb"),
                Example(
                    "tollgate help rules check",
                    "show those of a verb of a verb",
                ),
            ],
        ),
        &["man"],
    ),
    see(
        page(
            "version",
            &[
                Example(
                    "tollgate version",
                    "print version, commit, features and target",
                ),
                Example(
                    "tollgate version --json",
                    "print kernel and architecture, too",
                ),
            ],
        ),
        &["doctor"],
    ),
];

const fn bench(path: &'static str, examples: &'static [Example]) -> Page {
    see(
        files(
            exits(
                page(path, examples),
                Exits::Finding("a limit of --fail-if is exceeded"),
            ),
            &[(
                "results/DATE-NAME",
                "default folder of plan, samples and summary",
            )],
        ),
        &["bench", "generate bench"],
    )
}
