//! `tollgate runtime` where somebody has made a mistake: what runs goes on, and nothing is lost unsaid.

use e2e::need_runtime;
use e2e::runtime_fixture::RuntimeFixture;

#[test]
fn a_container_that_a_runtime_does_not_know_goes_on() {
    need_runtime!("runc");
    let ground = RuntimeFixture::new();
    ground.bundle("b", "touch /out/runs; sleep 1000");
    ground.scratch.file("other", 0o755, "#!/bin/sh\nexit 1\n");
    let (finished, _) = ground.run(
        "runc",
        r#"
other() { bin/tollgate-runtime --runtime ./other --root "$PWD/root" "$@"; }
is_running() { case $(rt state $ID) in *'"running"'*) ;; *) exit 93 ;; esac; }
rt create --bundle b $ID < /dev/null > create.out 2>&1
rt start $ID; await runs
for words in "delete $ID" "delete --force $ID" "create --bundle b $ID"; do
    status=0; other $words 2> said.txt || status=$?
    cat said.txt; echo "status $status"; is_running
done
# Its own runtime has forgotten it.
rm -r "root/$ID"
status=0; rt delete $ID 2> said.txt || status=$?
cat said.txt; echo "status $status"
grep -l '^sleep' /proc/[0-9]*/comm > sleeps
rt delete --force $ID
settle; remains $ID
"#,
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    let told = &finished.stdout;
    assert_eq!(told.matches("not of ./other").count(), 3, "{finished:?}");
    assert_eq!(
        told.matches("help: name its runtime: --runtime /").count(),
        3,
        "{finished:?}"
    );
    assert_eq!(told.matches("status 2\n").count(), 3, "{finished:?}");
    assert!(
        told.contains("does not know it, but it still has processes: ["),
        "{finished:?}"
    );
    assert!(told.ends_with("status 3\n"), "{finished:?}");
}

#[test]
fn alerts_have_a_way_out_and_misspelt_settings_start_nothing() {
    need_runtime!("runc");
    let ground = RuntimeFixture::new();
    ground.bundle("b", "cat /etc/secret");
    let (finished, _) = ground.run(
        "runc",
        r#"
mount -t tmpfs none /var/log
printf 'rules_files: [%s]\nruntime: {watch: all}\n' "$PWD/rules.yaml" > tollgate.yaml
rt run --bundle b $ID < /dev/null
grep -c '"rule":"Secret opened"' /var/log/tollgate/alerts.jsonl
echo 'wach: all' >> tollgate.yaml
rt run --bundle b $ID < /dev/null 2>&1
printf 'runtime: {polciy: web}\n' > tollgate.yaml
status=0; rt run --bundle b $ID < /dev/null 2>&1 || status=$?
echo "status $status"
settle; remains $ID
"#,
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    let lines: Vec<&str> = finished.stdout.lines().collect();
    let [first, opened, rest @ ..] = &lines[..] else {
        panic!("{finished:?}")
    };
    assert_eq!(*first, "secret", "{finished:?}");
    assert!(
        opened.parse::<u32>().is_ok_and(|count| count > 0),
        "{finished:?}"
    );
    let rest = rest.join("\n");
    assert!(
        rest.contains("unknown key `wach`, which has no effect"),
        "{rest}"
    );
    assert_eq!(
        rest.matches("\nsecret").count(),
        1,
        "it is a warning: {rest}"
    );
    assert!(rest.contains("unknown key `runtime.polciy`"), "{rest}");
    assert!(rest.contains("did you mean `runtime.policy`?"), "{rest}");
    assert!(rest.ends_with("status 2"), "nothing was started: {rest}");
}
