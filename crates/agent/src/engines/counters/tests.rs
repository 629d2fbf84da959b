use super::*;

const PAGE: &str = include_str!("../../../../../docs/reference/stats-file.md");

#[test]
fn every_counter_is_documented_under_its_engine_and_no_other_is() {
    let engines = [
        (
            "`notify` and `ptrace`",
            snapshot(&CounterSnapshot::default(), 0, &Losses::default()),
        ),
        (
            "`ebpf`",
            ebpf_snapshot(&ebpf::EbpfCounters::default(), 0, "raw"),
        ),
        (
            "`gvisor`",
            gvisor_snapshot(&gvisor::GvisorCounters::default(), 0),
        ),
    ];
    for (engine, snapshot) in engines {
        let title = format!("## Counters of {engine}\n");
        let (_, section) = PAGE.split_once(&title).expect("a section for each engine");
        let section = section.split("\n## ").next().expect("it is not empty");
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
        let documented: Vec<_> = rows
            .filter_map(|row| Some(row.split_once('`')?.0))
            .collect();
        let counted: Vec<_> = snapshot.counters.iter().map(|(name, _)| *name).collect();
        assert_eq!(documented, counted, "{engine}");
    }
}
