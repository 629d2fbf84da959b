//! The schema of test descriptions, as data: used for checks and by `suite explain`.

/// A property of an object.
#[derive(Debug)]
pub(super) struct Property {
    pub(super) name: &'static str,
    pub(super) required: bool,
    pub(super) kind: Kind,
    pub(super) text: &'static str,
}

/// Kind of a property's value.
#[derive(Debug)]
pub(super) enum Kind {
    /// Text.
    Text,
    /// An integer, names of flags with `|` between them, or a reference.
    Value,
    /// A map from names to texts.
    Texts,
    /// A map from names to any values.
    Anything,
    /// An object.
    Object(&'static [Property]),
    /// A list of objects.
    List(&'static [Property]),
    /// One of several words. Each adds further properties to the same object.
    Choice(&'static [(&'static str, &'static [Property])]),
}

const fn needed(name: &'static str, kind: Kind, text: &'static str) -> Property {
    Property {
        name,
        required: true,
        kind,
        text,
    }
}

const fn free(name: &'static str, kind: Kind, text: &'static str) -> Property {
    Property {
        name,
        required: false,
        kind,
        text,
    }
}

use Kind::{Anything, Choice, List, Object, Text, Texts, Value};

/// The whole document.
pub(super) static ROOT: &[Property] = &[needed("tests", List(TEST), "The tests, at least one.")];

static TEST: &[Property] = &[
    needed(
        "name",
        Text,
        "Name of the test, unique among all that are loaded.",
    ),
    needed(
        "runner",
        Choice(&[("HostRunner", &[])]),
        "Where tests run: on this machine.",
    ),
    free(
        "rule",
        Text,
        "The rule that must fire; `suite test` needs it. Tests of one rule are a suite.",
    ),
    free("description", Text, "For people."),
    free(
        "context",
        Object(CONTEXT),
        "In which processes, and whether in a container, the calls are made.",
    ),
    free(
        "before",
        Text,
        "A script of bash that runs before the resources are made.",
    ),
    free(
        "after",
        Text,
        "A bash script that runs at the end, even after a failure.",
    ),
    free(
        "resources",
        List(RESOURCE),
        "Resources that exist during the calls, in order.",
    ),
    free("steps", List(STEP), "The calls, in order."),
    free(
        "expectedOutcome",
        Object(OUTCOME),
        "Fields that the alert must have; `{}` checks only the rule.",
    ),
    free(
        "cases",
        List(CASE),
        "Makes the test a template: one test for each case, in which %{item.NAME} \
                               is replaced.",
    ),
];

static CONTEXT: &[Property] = &[
    free(
        "processes",
        List(PROCESS),
        "A chain: each process starts the next, the last one makes the calls.",
    ),
    free(
        "container",
        Object(CONTAINER),
        "Play in namespaces like those of a container.",
    ),
];

static CONTAINER: &[Property] = &[
    free(
        "image",
        Text,
        "Kept for other readers of the file: nothing is fetched here.",
    ),
    free(
        "name",
        Text,
        "Host name in the container. Default: event-generator.",
    ),
    free("env", Texts, "Variables of the environment."),
];

static PROCESS: &[Property] = &[
    free(
        "exePath",
        Text,
        "File of the program, which the test creates. Default: in the folder of the run.",
    ),
    free("args", Text, "Arguments, with quotes as in a shell."),
    free("exe", Text, "Argument 0. Default: the name."),
    free(
        "name",
        Text,
        "Name of the process in the kernel. Default: the name of the file.",
    ),
    free("env", Texts, "Variables of the environment."),
    free(
        "user",
        Text,
        "As whom. A user that does not exist is made for the time of the test, by root.",
    ),
    free(
        "capabilities",
        Text,
        "Capabilities of the last process, as in cap_from_text(3). Default: all.",
    ),
];

static RESOURCE: &[Property] = &[
    needed("name", Text, "By which calls refer to it: ${NAME.PATH}."),
    needed(
        "type",
        Choice(&[
            (
                "clientServer",
                &[
                    needed(
                        "l4Proto",
                        Choice(&[
                            ("tcp4", &[]),
                            ("tcp6", &[]),
                            ("udp4", &[]),
                            ("udp6", &[]),
                            ("unix", &[]),
                        ]),
                        "How they talk. Connections are made at once.",
                    ),
                    needed(
                        "address",
                        Text,
                        "Address and port of the server, such as 10.0.0.1:80, in a private network of the \
                        test. Empty for unix. Has client.fd, server.fd.",
                    ),
                ],
            ),
            (
                "fd",
                &[needed(
                    "subtype",
                    Choice(&[
                        (
                            "file",
                            &[needed(
                                "filePath",
                                Text,
                                "The file, which is created if missing. Has fd.",
                            )],
                        ),
                        (
                            "directory",
                            &[needed(
                                "dirPath",
                                Text,
                                "The folder, which is created if missing. Has fd.",
                            )],
                        ),
                        ("pipe", &[]),
                        ("event", &[]),
                        ("signalfd", &[]),
                        ("eventpoll", &[]),
                        ("inotify", &[]),
                        ("memfd", &[needed("fileName", Text, "Its name. Has fd.")]),
                    ]),
                    "Of what. A pipe has readFd and writeFd, others fd.",
                )],
            ),
            ("process", PROCESS_RESOURCE),
        ]),
        "What it is.",
    ),
];

static PROCESS_RESOURCE: &[Property] = &[
    free(
        "exePath",
        Text,
        "File of the program, which is made for the test. The process has pid.",
    ),
    free("args", Text, "Arguments, with quotes as in a shell."),
    free("exe", Text, "Argument 0. Default: the name."),
    free(
        "procName",
        Text,
        "Name of the process in the kernel. Default: the name of the file.",
    ),
    free("env", Texts, "Variables of the environment."),
];

static STEP: &[Property] = &[
    needed(
        "name",
        Text,
        "By which later calls refer to its arguments and to ret, what it returned.",
    ),
    needed(
        "type",
        Choice(&[("syscall", SYSCALL)]),
        "What is done: a call.",
    ),
    free(
        "expectedError",
        Text,
        "Error that the call must return, such as EPERM. Default: the call must succeed.",
    ),
];

static SYSCALL: &[Property] = &[needed(
    "syscall",
    Choice(&[
        (
            "connect",
            &[needed(
                "args",
                Object(&[FD, needed("address", Text, "Address and port, or a path.")]),
                ARGS,
            )],
        ),
        ("dup", &[needed("args", Object(&[OLD_FD]), ARGS)]),
        ("dup2", &[needed("args", Object(&[OLD_FD, NEW_FD]), ARGS)]),
        (
            "dup3",
            &[needed("args", Object(&[OLD_FD, NEW_FD, FLAGS]), ARGS)],
        ),
        (
            "finit_module",
            &[needed("args", Object(&[FD, PARAMETERS, FLAGS]), ARGS)],
        ),
        (
            "init_module",
            &[needed(
                "args",
                Object(&[needed("moduleImage", Text, "The module."), PARAMETERS]),
                ARGS,
            )],
        ),
        (
            "kill",
            &[needed(
                "args",
                Object(&[
                    needed("pid", Value, "The process."),
                    needed("sig", Value, "The signal, as in SIGKILL."),
                ]),
                ARGS,
            )],
        ),
        (
            "link",
            &[needed("args", Object(&[OLD_PATH, NEW_PATH]), ARGS)],
        ),
        (
            "linkat",
            &[needed(
                "args",
                Object(&[
                    needed("oldDirFd", Value, FOLDER),
                    OLD_PATH,
                    NEW_DIR_FD,
                    NEW_PATH,
                    FLAGS,
                ]),
                ARGS,
            )],
        ),
        (
            "open",
            &[needed(
                "args",
                Object(&[PATH, needed("flags", Value, FLAG_NAMES), MODE]),
                ARGS,
            )],
        ),
        (
            "openat",
            &[needed(
                "args",
                Object(&[DIR_FD, PATH, needed("flags", Value, FLAG_NAMES), MODE]),
                ARGS,
            )],
        ),
        (
            "openat2",
            &[needed(
                "args",
                Object(&[
                    DIR_FD,
                    PATH,
                    free(
                        "how",
                        Object(&[
                            FLAGS,
                            MODE,
                            free("resolve", Value, "As in RESOLVE_NO_SYMLINKS."),
                        ]),
                        "How to open.",
                    ),
                ]),
                ARGS,
            )],
        ),
        (
            "read",
            &[needed(
                "args",
                Object(&[
                    FD,
                    free(
                        "buffer",
                        Text,
                        "Where to; its length is the default of \
        len.",
                    ),
                    LEN,
                ]),
                ARGS,
            )],
        ),
        (
            "sendto",
            &[needed(
                "args",
                Object(&[
                    FD,
                    needed("buf", Text, "What."),
                    free("flags", Value, FLAG_NAMES),
                    needed("destAddr", Text, "Address and port, or a path."),
                    LEN,
                ]),
                ARGS,
            )],
        ),
        (
            "socket",
            &[needed(
                "args",
                Object(&[
                    needed("domain", Value, "As in AF_INET."),
                    needed("type", Value, "As in SOCK_STREAM."),
                    needed("protocol", Value, "0, or as in IPPROTO_TCP."),
                ]),
                ARGS,
            )],
        ),
        (
            "symlink",
            &[needed("args", Object(&[TARGET, LINK_PATH]), ARGS)],
        ),
        (
            "symlinkat",
            &[needed(
                "args",
                Object(&[TARGET, NEW_DIR_FD, LINK_PATH]),
                ARGS,
            )],
        ),
        (
            "write",
            &[needed(
                "args",
                Object(&[FD, free("buffer", Text, "What."), LEN]),
                ARGS,
            )],
        ),
    ]),
    "Which call.",
)];

const ARGS: &str = "Arguments of the call; ${NAME.PATH} is what a resource or an earlier call has.";
const FOLDER: &str = "Folder for a relative path, or AT_FDCWD.";
const FLAG_NAMES: &str = "A number, or names as in O_CREAT|O_RDWR.";
const FD: Property = needed("fd", Value, "The descriptor.");
const OLD_FD: Property = needed("oldFd", Value, "The descriptor to copy.");
const NEW_FD: Property = needed("newFd", Value, "The number of the copy.");
const DIR_FD: Property = needed("dirFd", Value, FOLDER);
const NEW_DIR_FD: Property = needed("newDirFd", Value, FOLDER);
const FLAGS: Property = free("flags", Value, FLAG_NAMES);
const MODE: Property = free(
    "mode",
    Value,
    "Rights of a file that is made, as a number or as in S_IRUSR.",
);
const LEN: Property = free("len", Value, "How many bytes.");
const PATH: Property = needed("pathname", Text, "The path.");
const OLD_PATH: Property = needed("oldPath", Text, "The existing path.");
const NEW_PATH: Property = needed("newPath", Text, "The new path.");
const TARGET: Property = needed("target", Text, "Target of the link.");
const LINK_PATH: Property = needed("linkPath", Text, "The path of the link.");
const PARAMETERS: Property = free("paramValues", Text, "Parameters of the module.");

static OUTCOME: &[Property] = &[
    free("source", Text, "Where the event came from, as in syscall."),
    free("hostname", Text, "The machine."),
    free("priority", Text, "Such as WARNING, in any case."),
    free(
        "outputFields",
        Texts,
        "Fields of the alert and what they must be.",
    ),
];

static CASE: &[Property] = &[
    needed(
        "strategy",
        Choice(&[("vector", &[]), ("matrix", &[])]),
        "vector: one test, each name has a value. matrix: each name has a list, one test for each \
            combination.",
    ),
    needed(
        "values",
        Anything,
        "Names and values; all cases of a test have the same names.",
    ),
];

/// Returns the properties of an object and those that its choices add. `choice` returns the word of a property.
pub(super) fn active(
    properties: &'static [Property],
    choice: &dyn Fn(&str) -> Option<String>,
) -> Vec<&'static Property> {
    let mut all = Vec::new();
    for property in properties {
        all.push(property);
        if let Choice(variants) = &property.kind
            && let Some(word) = choice(property.name)
            && let Some((_, more)) = variants.iter().find(|(name, _)| *name == word)
        {
            all.extend(active(more, choice));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_bring_properties() {
        let choice = |name: &str| match name {
            "type" => Some("syscall".to_owned()),
            "syscall" => Some("openat2".to_owned()),
            _ => None,
        };
        let names: Vec<_> = active(STEP, &choice)
            .iter()
            .map(|property| property.name)
            .collect();
        assert_eq!(names, ["name", "type", "syscall", "args", "expectedError"]);
        assert_eq!(active(STEP, &|_| None).len(), 3);
    }
}
