//! Conversion of the command line to the options of an agent.

use agent::confine;
use agent::options;
use agent::spec::{AgentSpec, StartMode};
use diagnostics::failure::Failure;

use crate::args;

impl From<args::Detection> for options::Detection {
    fn from(args: args::Detection) -> Self {
        let settings = args.sources.settings();
        Self {
            rules: args.sources.rules,
            add_rules: args.sources.add_rules,
            rules_folder: args.places.rules,
            layers: args.places.files,
            config: args.sources.config,
            // What `-o` says goes before.
            options: [args.collector.options(), args.responses.options(), settings].concat(),
            json: args.json,
            stream: args.stream.into(),
            write: args.write,
            rotation: args.rotation.into(),
            stats: args.stats,
            stats_interval: args.stats_interval,
            pidfile: args.pidfile,
            container_id: args.container_id,
            hooks: args.hooks.into(),
            unfiltered: args.unfiltered,
            ring_kib: args.ring_kib,
            rule_threads: args.rule_threads,
            quiet: args.quiet,
            manner: args.manner,
            without_rules: false,
            learner: None,
            given: None,
            given_folders: None,
            containers: None,
            observer: None,
        }
    }
}

impl args::Detection {
    /// Returns the options that were given and need others, for [`args::Idle::check`].
    pub(crate) fn idle(&self) -> args::Idle {
        args::Idle::of(&self.collector, Some(&self.responses))
    }

    /// Converts the options, and refuses those that do nothing.
    ///
    /// # Errors
    ///
    /// As [`args::Idle::check`].
    pub(crate) fn checked(self) -> Result<options::Detection, Failure> {
        let idle = self.idle();
        let detection = self.into();
        idle.check(&detection)?;
        Ok(detection)
    }
}

impl From<args::AlertStream> for options::AlertStream {
    fn from(args: args::AlertStream) -> Self {
        Self {
            log: args.log,
            is_beside_command: false,
            format: args.format.map(|format| match format {
                args::AlertFormat::Pretty => options::AlertFormat::Pretty,
                args::AlertFormat::Line => options::AlertFormat::Line,
                args::AlertFormat::Falco => options::AlertFormat::Falco,
                args::AlertFormat::Json => options::AlertFormat::Json,
            }),
            is_wide: args.wide,
        }
    }
}

impl args::AlertStream {
    /// Converts the options of a verb whose command has the standard output to itself.
    pub(crate) fn beside_command(self) -> options::AlertStream {
        options::AlertStream {
            is_beside_command: true,
            ..self.into()
        }
    }
}

impl From<args::Rotation> for options::Rotation {
    fn from(args: args::Rotation) -> Self {
        Self {
            write_size: args.write_size,
            write_time: args.write_time,
            write_events: args.write_events,
            write_keep: args.write_keep,
        }
    }
}

impl From<args::Interception> for options::Interception {
    fn from(args: args::Interception) -> Self {
        Self {
            engine: args.engine.kind(),
            every_call: args.every_call,
            verify: args.verify,
            io_uring: args.io_uring,
            refuse: args
                .refuse
                .into_iter()
                .map(options::Refusal::from)
                .collect(),
        }
    }
}

impl From<args::Run> for AgentSpec {
    fn from(args: args::Run) -> Self {
        let mut detection = options::Detection::from(args.detection);
        detection.stream.is_beside_command = true;
        Self {
            detection,
            confine: args.confine.into(),
            interception: args.interception.into(),
            on_agent_death: args.on_agent_death,
            agent_timeout: args.agent_timeout,
            mode: StartMode::Command,
            takes_over: None,
            command: args.command,
        }
    }
}

impl From<args::Confine> for confine::Optional {
    fn from(args: args::Confine) -> Self {
        Self {
            policy: args.policy,
            how: args.how.into(),
            guard: None,
        }
    }
}

impl From<args::PolicyOptions> for confine::PolicyStrictness {
    fn from(args: args::PolicyOptions) -> Self {
        Self {
            audit: args.audit,
            accept_partial: args.accept_partial,
        }
    }
}

impl From<args::Refusal> for options::Refusal {
    fn from(refusal: args::Refusal) -> Self {
        match refusal {
            args::Refusal::NonDumpable => Self::NonDumpable,
        }
    }
}

impl From<args::Hooks> for capture::ebpf::Hooks {
    fn from(hooks: args::Hooks) -> Self {
        match hooks {
            args::Hooks::Auto => Self::Auto,
            args::Hooks::Functions => Self::Functions,
            args::Hooks::PerCall => Self::PerCall,
            args::Hooks::Raw => Self::Raw,
            args::Hooks::Nothing => Self::Nothing,
        }
    }
}
