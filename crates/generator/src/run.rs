//! `tollgate generate run`: performs actions.

use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use serde_json::{Value, json};

use crate::action::{Action, Outcome as Played};
use crate::options::RunOptions;

/// Plays actions. The exit code is 1 if an action failed.
///
/// # Errors
///
/// If no action is selected, or none can be played here.
pub fn execute(args: &RunOptions) -> Outcome {
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

/// Formats the outcome of an action on one line.
pub(super) fn text(action: &Action, played: &Played) -> String {
    match played {
        Played::Done => format!("done     {}", action.name),
        Played::Skipped { reason } => format!("skipped  {}: {reason}", action.name),
        Played::Failed { error } => format!("failed   {}: {error}", action.name),
    }
}

/// Formats the outcome of an action as JSON.
pub(super) fn object(action: &Action, played: &Played) -> Value {
    let mut object = json!({"action": action.name});
    if let (Value::Object(to), Ok(Value::Object(from))) =
        (&mut object, serde_json::to_value(played))
    {
        to.extend(from);
    }
    object
}
