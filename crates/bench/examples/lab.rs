//! `tollgate bench` and `tollgate workload` as a small program of their own, for development:
//! `cargo run --release -p bench --example lab -- bench quick --help`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure what a subject costs a workload
    Bench(bench::command::Bench),
    /// Run one load generator
    Workload(workload::Args),
}

fn main() -> std::io::Result<ExitCode> {
    let program = std::env::current_exe()?;
    let mut out = std::io::stdout();
    Ok(match Program::parse().command {
        Command::Workload(args) => workload::run(&args, &program, &mut out).into(),
        Command::Bench(command) => match bench::command::execute(&command, &program, &mut out) {
            Ok(code) => code.into(),
            Err(error) => {
                let exit_code = error.exit_code();
                let causes =
                    std::iter::successors(Some(&error as &dyn std::error::Error), |e| e.source());
                let chain: Vec<String> = causes.map(ToString::to_string).collect();
                eprintln!("lab: {}", chain.join(": "));
                exit_code.into()
            }
        },
    })
}
