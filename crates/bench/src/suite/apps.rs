//! `tollgate bench apps`: real servers and jobs.

use super::{SuiteOptions, Table, available, own};
use crate::Error;
use crate::client::{Requests, Server};
use crate::host::is_installed;
use crate::plan::{Plan, Suite, TimeSource, Workload};

/// Options of `tollgate bench apps`.
#[derive(Clone, Debug)]
pub struct Apps {
    /// Options of every suite.
    pub choice: SuiteOptions,
}

/// Redis's commands, as in the published studies.
const ASKED: [&str; 5] = ["get", "set", "lpush", "lpop", "sadd"];
const REDIS_CLIENTS: [u32; 2] = [50, 500];
const WEB_CLIENTS: [u32; 6] = [4, 20, 100, 200, 500, 1000];

/// A command that does its work and ends.
struct Job {
    name: &'static str,
    needs: &'static [&'static str],
    /// The command. `AMOUNT` is replaced by the amount of work.
    command: &'static str,
    unit: &'static str,
    /// Amounts with `--quick` and without.
    amounts: (u32, u32),
    figure: TimeSource,
}

/// `identify` shows that `convert` is ImageMagick's.
const IMAGE: &[&str] = &["convert", "identify"];

#[rustfmt::skip]
const JOBS: &[Job] = &[
    Job { name: "sysbench-cpu", needs: &["sysbench"], command: "sysbench cpu --cpu-max-prime=10000 --events=AMOUNT --time=0 run", unit: "event", amounts: (100, 2000), figure: TimeSource::Wall },
    Job { name: "sysbench-memory", needs: &["sysbench"], command: "sysbench memory --memory-total-size=AMOUNTM --time=0 run", unit: "MiB", amounts: (256, 8192), figure: TimeSource::Wall },
    Job { name: "image-resize", needs: IMAGE, command: "convert -size AMOUNTxAMOUNT plasma:tan-navy -resize 50% null:", unit: "edge", amounts: (300, 1500), figure: TimeSource::Wall },
    Job { name: "image-rotate", needs: IMAGE, command: "convert -size AMOUNTxAMOUNT plasma:tan-navy -rotate 7 null:", unit: "edge", amounts: (300, 1500), figure: TimeSource::Wall },
    Job { name: "image-levels", needs: IMAGE, command: "convert -size AMOUNTxAMOUNT plasma:tan-navy -auto-level null:", unit: "edge", amounts: (300, 1500), figure: TimeSource::Wall },
    Job { name: "image-unsharp", needs: IMAGE, command: "convert -size AMOUNTxAMOUNT plasma:tan-navy -unsharp 0x3 null:", unit: "edge", amounts: (300, 1500), figure: TimeSource::Wall },
    Job { name: "compile", needs: &["cc"], command: COMPILE, unit: "file", amounts: (3, 20), figure: TimeSource::Wall },
    Job { name: "reads-4k", needs: &[], command: "{tollgate} workload pread_4k --operations AMOUNT", unit: "read", amounts: (50_000, 1_000_000), figure: TimeSource::Json },
];

/// Compiles one source file at a time, each through preprocessor, compiler and assembler.
const COMPILE: &str = r##"sh -c 'set -e; d=$(mktemp -d); i=0; while [ $i -lt AMOUNT ]; do
printf "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\nint f%d(int n) { char b[64]; snprintf(b, sizeof b, \"%%d\", n); return (int)strlen(b); }\n" $i > $d/$i.c;
cc -O2 -c -o $d/$i.o $d/$i.c; i=$((i + 1)); done; rm -r $d'"##;

impl Apps {
    /// Makes the plan. Leaves out what is not installed, which [`Apps::missing`] lists.
    pub(crate) fn plan(&self) -> Result<Plan, Error> {
        let mut workloads = Vec::new();
        if Server::Redis.is_installed() {
            for clients in REDIS_CLIENTS {
                workloads.extend(ASKED.iter().map(|ask| {
                    let name = format!("redis-{ask}-{clients}");
                    self.server(&name, Server::Redis, clients, ask)
                }));
            }
        }
        for server in [Server::Nginx, Server::Apache] {
            if server.is_installed() {
                let name = |clients| format!("{}-{clients}", server.name());
                workloads.extend(
                    WEB_CLIENTS.map(|clients| self.server(&name(clients), server, clients, "/")),
                );
            }
        }
        let is_here = |job: &&Job| job.needs.iter().all(|program| is_installed(program));
        workloads.extend(JOBS.iter().filter(is_here).map(|job| self.job(job)));
        self.choice.plan(Table {
            suite: Suite::Apps,
            name: "apps",
            workloads,
            subjects: available(&["notify"], &self.choice.rules)?,
            rounds: self.choice.pick(1, 6),
            timeout_seconds: 120,
        })
    }

    /// Returns the programs that are not installed.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        let servers = [Server::Redis, Server::Nginx, Server::Apache];
        let all = servers.iter().flat_map(|server| server.needs());
        let mut missing: Vec<&str> = all
            .chain(JOBS.iter().flat_map(|job| job.needs))
            .copied()
            .filter(|program| !is_installed(program))
            .collect();
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// Makes a workload of a server. The subject wraps the server; clients run without it.
    fn server(&self, name: &str, server: Server, clients: u32, ask: &str) -> Workload {
        let requests = match server {
            Server::Redis => self.choice.pick(2_000, 100_000),
            Server::Nginx | Server::Apache => self.choice.pick(1_000, 20_000),
        };
        let requests = Requests {
            server,
            ask: ask.to_owned(),
            clients,
            requests: requests.max(clients),
        };
        Workload {
            command: server.command().to_owned(),
            around: Some(format!(
                "{{tollgate}} bench client {} {{}}",
                requests.arguments()
            )),
            ..own(name, "request", "")
        }
    }

    fn job(&self, job: &Job) -> Workload {
        let amount = self.choice.pick(job.amounts.0, job.amounts.1);
        Workload {
            command: job.command.replace("AMOUNT", &amount.to_string()),
            figure: job.figure,
            operations: (job.figure == TimeSource::Wall).then_some(amount.into()),
            ..own(job.name, job.unit, "")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::quick;
    use super::*;

    #[test]
    fn amounts_are_put_in_and_servers_are_what_is_wrapped() {
        let apps = Apps { choice: quick() };
        for job in JOBS {
            let workload = apps.job(job);
            assert!(!workload.command.contains("AMOUNT"), "{}", workload.command);
            assert!(crate::command_line::split(&workload.command).is_ok());
        }
        let redis = apps.server("r", Server::Redis, 500, "get");
        assert!(redis.command.contains("redis-server"));
        assert!(redis.around.unwrap().contains("--clients 500"));
        assert!(
            apps.plan()
                .unwrap()
                .workloads
                .iter()
                .any(|w| w.name == "reads-4k")
        );
    }
}
