//! Rules judge the events; alerts go to the channels.

use std::cell::Cell;
use std::time::{Duration, Instant};

use outputs::Dispatcher;

use super::play;
use crate::args::Replay;
use crate::command::run;
use crate::command::run::sink::DeferredSink;
use crate::config::{self, Manner};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::{journal, rule_files, terminal};

/// Alerts that are handed over before the channels are waited for. A quarter of what their queues
/// hold: a recorded event has no deadline, so none need be lost.
const WAVE: u64 = outputs::QUEUE_CAPACITY.alerts as u64 / 4;

pub(super) fn raise(args: &Replay) -> Outcome {
    let (mut config, warnings) = config::load(args.config.as_deref(), &args.options, args.manner)?;
    journal::open(config.log, args.manner, config.time_format_iso_8601);
    config.json_output |= args.json;
    if !args.rules.is_empty() {
        config.rules_files.clone_from(&args.rules);
    }
    let mut loaded = rule_files::load(&config.rules_files);
    let idle = loaded.select(&config.rules);
    if !args.quiet {
        let idle = idle.iter().map(|selection| selection.complaint());
        // The personality has read the configuration itself.
        let told = args.manner == Manner::Falco;
        let warnings = warnings.into_iter().filter(|_| !told);
        for warning in warnings.chain(idle) {
            journal::warn(&format!("warning: {warning}"));
        }
    }
    let sink = DeferredSink::default();
    let (engine, _plan) = loaded.compile(&run::engine_options(&config, None), sink.clone());
    loaded.usable()?;
    if !args.quiet {
        run::warn(&loaded);
    }
    let dispatcher = run::outputs(&config, args.quiet, None)?
        .start()
        .map_err(|error| {
            Failure::from_error(Exit::Internal, &error)
                .help("look at the limit on processes (ulimit -u)")
        })?;
    sink.connect(dispatcher.clone());
    let timeout = Duration::from_millis(config.output_timeout_ms);
    let waited = Cell::new(0);
    let played = play(args, &engine, || {
        if dispatcher.counters().emitted - waited.get() >= WAVE {
            dispatcher.flush(Instant::now() + timeout);
            waited.set(dispatcher.counters().emitted);
        }
        Ok(true)
    })?;
    finish(&dispatcher, timeout);
    played.end(args)
}

fn finish(dispatcher: &Dispatcher, timeout: Duration) {
    dispatcher.flush(Instant::now() + timeout);
    for channel in dispatcher.counters().channels {
        let lost = channel.lost_queue_full + channel.lost_write_failed;
        if lost > 0 || channel.pending > 0 {
            terminal::complain(&format!(
                "tollgate: {}: {lost} alerts lost, {} not delivered\n",
                channel.channel, channel.pending
            ));
        }
    }
    dispatcher.close(timeout);
}
