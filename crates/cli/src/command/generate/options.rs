//! Conversion of the command line of `tollgate generate` to the options of the generator.

use diagnostics::failure::Failure;
use generator::action::{PerformOptions, SweepOptions, WorkOptions};
use generator::options::{
    AlertSource, BenchOptions, Descriptions, GrpcSource, ListOptions, LogFormat, PlayOptions,
    ReportFormat, RunOptions, SecurityMode, Selection, SuiteRunOptions, SuiteTestOptions,
    TestOptions,
};
use generator::scenario::SceneOptions;

use super::args;
use super::detector::detector;

impl From<args::Perform> for PerformOptions {
    fn from(args: args::Perform) -> Self {
        Self {
            name: args.name,
            scratch: args.scratch,
            spawned: args.spawned,
            container: args.container,
            touch_system: args.touch_system,
            allow_network: args.allow_network,
            user: args.user,
            after: args.after,
        }
    }
}

impl From<args::Work> for WorkOptions {
    fn from(args: args::Work) -> Self {
        Self {
            threads: args.threads,
            more: args.more,
            perform: args.perform.into(),
        }
    }
}

impl From<args::Scene> for SceneOptions {
    fn from(args: args::Scene) -> Self {
        Self {
            file: args.file,
            scratch: args.scratch,
            touch_system: args.touch_system,
            allow_network: args.allow_network,
            inside: args.inside,
        }
    }
}

impl From<args::Sweep> for SweepOptions {
    fn from(args: args::Sweep) -> Self {
        Self {
            scratch: args.scratch,
        }
    }
}

impl From<args::Selection> for Selection {
    fn from(args: args::Selection) -> Self {
        Self {
            pattern: args.pattern,
            all: args.all,
        }
    }
}

impl From<args::List> for ListOptions {
    fn from(args: args::List) -> Self {
        Self {
            selection: args.selection.into(),
            long: args.long,
            json: args.json,
        }
    }
}

impl From<args::Play> for PlayOptions {
    fn from(args: args::Play) -> Self {
        Self {
            sleep: args.sleep,
            repeat: args.repeat,
            user: args.user,
            touch_system: args.touch_system,
            allow_network: args.allow_network,
            container: args.container,
        }
    }
}

impl From<args::Run> for RunOptions {
    fn from(args: args::Run) -> Self {
        Self {
            selection: args.selection.into(),
            play: args.play.into(),
            json: args.json,
        }
    }
}

impl From<args::Descriptions> for Descriptions {
    fn from(args: args::Descriptions) -> Self {
        Self {
            description_file: args.description_file,
            description_dir: args.description_dir,
            description: args.description,
            timeout: args.timeout,
            touch_system: args.touch_system,
            allow_network: args.allow_network,
        }
    }
}

impl From<args::SuiteRun> for SuiteRunOptions {
    fn from(args: args::SuiteRun) -> Self {
        Self {
            descriptions: args.descriptions.into(),
            report_format: args.report_format.into(),
        }
    }
}

impl From<args::Grpc> for GrpcSource {
    fn from(args: args::Grpc) -> Self {
        Self {
            grpc_unix_socket: args.grpc_unix_socket,
            grpc_hostname: args.grpc_hostname,
            grpc_port: args.grpc_port,
            grpc_ca: args.grpc_ca,
            grpc_cert: args.grpc_cert,
            grpc_key: args.grpc_key,
        }
    }
}

impl From<args::ReportFormat> for ReportFormat {
    fn from(args: args::ReportFormat) -> Self {
        match args {
            args::ReportFormat::Text => Self::Text,
            args::ReportFormat::Json => Self::Json,
            args::ReportFormat::Yaml => Self::Yaml,
        }
    }
}

impl From<args::LogFormat> for LogFormat {
    fn from(args: args::LogFormat) -> Self {
        match args {
            args::LogFormat::Text => Self::Text,
            args::LogFormat::Json => Self::Json,
            args::LogFormat::Table => Self::Table,
        }
    }
}

impl From<args::Security> for SecurityMode {
    fn from(args: args::Security) -> Self {
        match args {
            args::Security::Insecure => Self::Insecure,
            args::Security::Tls => Self::Tls,
            args::Security::Mtls => Self::Mtls,
        }
    }
}

impl TryFrom<args::Source> for AlertSource {
    type Error = Failure;

    fn try_from(args: args::Source) -> Result<Self, Failure> {
        let detector = args.watched.then(|| detector(&args)).transpose()?;
        Ok(Self {
            detector,
            http_server_address: args.http_server_address,
            http_server_security_mode: args.http_server_security_mode.into(),
            http_server_cert: args.http_server_cert,
            http_server_key: args.http_server_key,
            http_client_ca: args.http_client_ca,
            grpc: args.grpc.into(),
            alerts_file: args.alerts_file,
        })
    }
}

impl TryFrom<args::Test> for TestOptions {
    type Error = Failure;

    fn try_from(args: args::Test) -> Result<Self, Failure> {
        Ok(Self {
            selection: args.selection.into(),
            play: args.play.into(),
            source: args.source.try_into()?,
            test_timeout: args.test_timeout,
            json: args.json,
        })
    }
}

impl TryFrom<args::Bench> for BenchOptions {
    type Error = Failure;

    fn try_from(args: args::Bench) -> Result<Self, Failure> {
        Ok(Self {
            selection: args.selection.into(),
            play: args.play.into(),
            source: args.source.try_into()?,
            round_duration: args.round_duration,
            rounds: args.rounds,
            knee: args.knee,
            pid: args.pid,
            polling_interval: args.polling_interval,
            humanize: args.humanize,
            dry_run: args.dry_run,
            threads: args.threads,
            calls: args.calls,
            stats: args.stats,
            metrics: args.metrics,
            cpus: args.cpus,
            memory: args.memory,
            logformat: args.logformat.into(),
            record: args.record,
            plot: args.plot,
        })
    }
}

impl TryFrom<args::SuiteTest> for SuiteTestOptions {
    type Error = Failure;

    fn try_from(args: args::SuiteTest) -> Result<Self, Failure> {
        Ok(Self {
            descriptions: args.descriptions.into(),
            source: args.source.try_into()?,
            skip_outcome_verification: args.skip_outcome_verification,
            report_format: args.report_format.into(),
        })
    }
}
