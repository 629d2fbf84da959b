//! `tollgate generate run`.

use serde_json::{Value, json};
use workload::action::{Action, Outcome as Played};

use super::args::Run;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::terminal;

/// Runs the verb.
pub(crate) fn execute(args: &Run) -> Outcome {
    let actions = super::select(&args.selection)?;
    let player = super::player(&args.play, Vec::new())?;
    let mut failed = false;
    loop {
        for action in &actions {
            std::thread::sleep(args.play.sleep);
            let played = player.play(action);
            failed |= matches!(played, Played::Failed { .. });
            let line = if args.json {
                object(action, &played).to_string()
            } else {
                text(action, &played)
            };
            terminal::print(&format!("{line}\n"))?;
        }
        if !args.play.repeat {
            break;
        }
    }
    finish(failed)
}

fn finish(failed: bool) -> Result<Exit, Failure> {
    Ok(if failed { Exit::Command(1) } else { Exit::Ok })
}

/// What came of an action, in a line.
pub(super) fn text(action: &Action, played: &Played) -> String {
    match played {
        Played::Done => format!("done     {}", action.name),
        Played::Skipped { reason } => format!("skipped  {}: {reason}", action.name),
        Played::Failed { error } => format!("failed   {}: {error}", action.name),
    }
}

/// The same as JSON.
pub(super) fn object(action: &Action, played: &Played) -> Value {
    let mut object = json!({"action": action.name});
    if let (Value::Object(to), Ok(Value::Object(from))) =
        (&mut object, serde_json::to_value(played))
    {
        to.extend(from);
    }
    object
}
