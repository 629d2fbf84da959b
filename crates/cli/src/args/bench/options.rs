//! Conversion of the command line of `tollgate bench` to the options of crate `bench`.

use std::path::PathBuf;

use bench::options::{
    Apps, Compare, Engine, Environment, Lifecycle, Os, OutputOptions, Part, Quick, Report,
    Requests, Server, SuiteOptions, Surroundings, Syscalls, Unix, UnixBenchTest, Verb,
};

use super as args;

impl From<args::Bench> for Verb {
    fn from(args: args::Bench) -> Self {
        match args.verb {
            args::Verb::Quick(args) => Self::Quick(args.into()),
            args::Verb::Unix(args) => unix(args),
            args::Verb::Os(args) => Self::Os(
                Os {
                    choice: args.choice.into(),
                },
                args.out.into(),
            ),
            args::Verb::Syscalls(args) => Self::Syscalls(
                Syscalls {
                    choice: args.choice.into(),
                    calls: args.calls,
                },
                args.out.into(),
            ),
            args::Verb::Lifecycle(args) => Self::Lifecycle(
                Lifecycle {
                    choice: args.choice.into(),
                },
                args.out.into(),
            ),
            args::Verb::Engine(args) => Self::Engine(
                Engine {
                    choice: args.choice.into(),
                },
                args.out.into(),
            ),
            args::Verb::Apps(args) => Self::Apps(
                Apps {
                    choice: args.choice.into(),
                },
                args.out.into(),
            ),
            args::Verb::Compare(args) => compare(args),
            args::Verb::Report(args) => Self::Report(args.into()),
            args::Verb::Plans(args) => args.into(),
        }
    }
}

impl From<args::PlanVerb> for Verb {
    fn from(args: args::PlanVerb) -> Self {
        match args {
            args::PlanVerb::Beside(args) => Self::Beside { words: args.words },
            args::PlanVerb::Neighbour(args) => Self::Neighbour {
                load: args.load,
                seconds: args.seconds,
                words: args.words,
            },
            args::PlanVerb::Inside(args) => Self::Inside {
                surroundings: args.place.into(),
                words: args.words,
            },
            args::PlanVerb::Client(args) => Self::Client {
                requests: Requests {
                    server: args.server.into(),
                    ask: args.ask,
                    clients: args.clients,
                    requests: args.requests,
                },
                words: args.words,
            },
            args::PlanVerb::Part(args) => Self::Part {
                part: args.part.into(),
                seconds: args.seconds,
            },
            args::PlanVerb::Filter(args) => Self::Filter {
                size: args.size,
                words: args.words,
            },
            args::PlanVerb::Original(args) => Self::Original(UnixBenchTest {
                test: args.test,
                seconds: args.seconds,
                copies: args.copies,
                folder: args.folder,
            }),
        }
    }
}

fn unix(args: args::Unix) -> Verb {
    let unix = Unix {
        choice: args.choice.into(),
        copies: args.copies,
        classic: args.classic,
        passes: args.passes,
        seconds: args.seconds,
        unixbench: args.unixbench,
    };
    Verb::Unix(unix, args.out.into())
}

fn compare(args: args::Compare) -> Verb {
    if let Some(plan) = args.plan {
        return Verb::Plan(plan, args.out.into());
    }
    let folders: [PathBuf; 2] = (args.folders.try_into())
        .expect("clap refuses a command line with neither a plan nor two folders");
    Verb::Compare(Compare {
        folders,
        json: args.out.json,
    })
}

impl From<args::Quick> for Quick {
    fn from(args: args::Quick) -> Self {
        Self {
            rounds: args.rounds,
            subjects: args.subjects,
            workload: args.workload,
            seed: args.seed,
            budget: args.budget,
            out: args.out.into(),
        }
    }
}

impl From<args::SuiteArgs> for SuiteOptions {
    fn from(args: args::SuiteArgs) -> Self {
        Self {
            subjects: args.subjects,
            workload: args.workload,
            rounds: args.rounds,
            precision: args.precision,
            budget: args.budget,
            quick: args.quick,
            setup: args.setup.into(),
            rules: args.rules,
            seed: args.seed,
            list: args.list,
        }
    }
}

impl From<args::Output> for OutputOptions {
    fn from(args: args::Output) -> Self {
        Self {
            out: args.out,
            json: args.json,
            fail_if: args.fail_if,
        }
    }
}

impl From<args::Report> for Report {
    fn from(args: args::Report) -> Self {
        Self {
            folder: args.folder,
            json: args.json,
            markdown: args.markdown,
            history: args.history,
            fail_if: args.fail_if,
        }
    }
}

impl From<args::Environment> for Environment {
    fn from(args: args::Environment) -> Self {
        match args {
            args::Environment::Plain => Self::Plain,
            args::Environment::Container => Self::Container,
            args::Environment::QuarterCpu => Self::QuarterCpu,
            args::Environment::Session => Self::Session,
        }
    }
}

impl From<args::Surroundings> for Surroundings {
    fn from(args: args::Surroundings) -> Self {
        match args {
            args::Surroundings::QuarterCpu => Self::QuarterCpu,
            args::Surroundings::Session => Self::Session,
        }
    }
}

impl From<args::Server> for Server {
    fn from(args: args::Server) -> Self {
        match args {
            args::Server::Redis => Self::Redis,
            args::Server::Nginx => Self::Nginx,
            args::Server::Apache => Self::Apache,
        }
    }
}

impl From<args::Part> for Part {
    fn from(args: args::Part) -> Self {
        match args {
            args::Part::ReplayRules => Self::ReplayRules,
            args::Part::ReplayFilter => Self::ReplayFilter,
            args::Part::AlertLatency => Self::AlertLatency,
            args::Part::Start => Self::Start,
        }
    }
}
