//! Calls of the generator.

use std::io;

use diagnostics::exit::Exit;
use diagnostics::failure::Outcome;
use diagnostics::terminal;
use generator::{action, own_program, scenario, suite};

use super::args::{Generate, Suite};

/// Runs the verb.
pub(crate) fn execute(verb: Generate) -> Outcome {
    match verb {
        Generate::List(args) => generator::list::execute(&args.into()),
        Generate::Run(args) => generator::run::execute(&args.into()),
        Generate::Test(args) => generator::test::execute(&(*args).try_into()?),
        Generate::Perform(args) => Ok(Exit::Command(action::perform(
            &args.into(),
            &own_program()?,
            &mut io::stdout().lock(),
        ))),
        Generate::Suite(Suite::Explain(args)) => {
            terminal::print(&suite::explain::text(args.path.as_deref(), &args.with)?)
        }
        Generate::Suite(Suite::Run(args)) => suite::run(&args.into()),
        Generate::Suite(Suite::Test(args)) => suite::test(&(*args).try_into()?),
        Generate::Scene(args) => Ok(Exit::Command(scenario::scene(
            &args.into(),
            &own_program()?,
            &mut io::stdout().lock(),
        ))),
        Generate::Bench(args) => generator::bench::execute(&(*args).try_into()?),
        Generate::Work(args) => Ok(Exit::Command(action::work(
            &args.into(),
            &own_program()?,
            &mut io::stdin().lock(),
            &mut io::stdout().lock(),
        ))),
        Generate::Sweep(args) => Ok(Exit::Command(action::sweep(&args.into()))),
    }
}
