//! `tollgate workload` as a program of its own, for the tests of this crate.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Workload(workload::Args),
}

fn main() -> std::io::Result<ExitCode> {
    let Command::Workload(args) = Program::parse().command;
    let program = std::env::current_exe()?;
    Ok(workload::run(&args, &program, &mut std::io::stdout()).into())
}
