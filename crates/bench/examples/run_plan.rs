//! Runs a plan as `tollgate bench compare --plan PLAN --out DIR` does, for the test of Ctrl-C.

use std::path::PathBuf;
use std::process::ExitCode;

use bench::options::{OutputOptions, Verb};

fn main() -> std::io::Result<ExitCode> {
    let mut words = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(plan), Some(folder), None) = (words.next(), words.next(), words.next()) else {
        eprintln!("usage: run_plan PLAN DIR");
        return Ok(2.into());
    };
    let place = OutputOptions {
        out: Some(folder),
        ..OutputOptions::default()
    };
    let program = std::env::current_exe()?;
    let verb = Verb::Plan(plan, place);
    Ok(
        match bench::command::execute(&verb, &program, &mut std::io::stdout()) {
            Ok(code) => code.into(),
            Err(error) => {
                eprintln!("run_plan: {error}");
                error.exit_code().into()
            }
        },
    )
}
