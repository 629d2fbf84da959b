//! Containers of two builds of `tollgate runtime` at once, as during an upgrade and a downgrade.

use std::path::PathBuf;

use e2e::runtime_fixture::{RuntimeFixture, fields};
use e2e::{Alert, need_runtime, need_slow, skip};

/// Names the program of another build.
const PREVIOUS: &str = "TOLLGATE_PREVIOUS_BIN";

/// Each build makes a container; each then serves the other's, and removes it. `old` and `new` are the builds.
const SCRIPT: &str = r#"
new() { bin/tollgate-runtime --runtime runc --root "$PWD/root" "$@"; }
old() { previous/tollgate-runtime --runtime runc --root "$PWD/root" "$@"; }
make() {
    $1 create --bundle b-$2 "$ID-$2" < /dev/null > create.out 2>&1
    $1 start "$ID-$2"
    await $2
}
for round in 1 2 3; do
    make old by-old
    make new by-new
    for build in old new; do
        for name in by-old by-new; do
            case $($build state "$ID-$name") in *'"running"'*) ;; *) exit 94 ;; esac
            $build exec "$ID-$name" echo $build $name
        done
    done
    # Upgrade and downgrade.
    new kill "$ID-by-old" KILL
    new delete --force "$ID-by-old"
    old kill "$ID-by-new" KILL
    old delete --force "$ID-by-new"
    rm out/by-old out/by-new
done
settle
test -z "$(remains "$ID")"
"#;

/// Four callers make containers, start programs in them and remove them, while the program that they call is replaced by
/// the other build again and again. `mixed` is that program.
const LOAD: &str = r#"
mkdir mixed
put() { cp "$1" mixed/next; mv mixed/next mixed/tollgate-runtime; }
mixed() { mixed/tollgate-runtime --runtime runc --root "$PWD/root" "$@"; }
caller() (
    # Whether it succeeds or not.
    trap 'touch "finished.$1"' EXIT
    for number in 1 2 3 4 5 6; do
        id=$ID-$1-$number
        mixed create --bundle b "$id" < /dev/null > "create.$1" 2>&1
        mixed start "$id"
        case $(mixed state "$id") in *'"running"'*) ;; *) exit 94 ;; esac
        for session in 1 2; do test "$(mixed exec "$id" echo "$id")" = "$id"; done
        mixed kill "$id" KILL
        mixed delete --force "$id"
    done
)
put previous/tollgate-runtime
callers=
for number in 1 2 3 4; do caller $number & callers="$callers $!"; done
replaced=0
while test "$(ls finished.* 2> /dev/null | wc -l)" != 4; do
    put bin/tollgate-runtime; sleep 0.4
    put previous/tollgate-runtime; sleep 0.4
    replaced=$((replaced + 2))
done
for caller in $callers; do wait "$caller"; done
test $replaced -ge 4
settle
test -z "$(remains "$ID")"
"#;

/// Returns a folder with both builds; `None` if there is no other build.
fn ground_of_two_builds(agent: &str) -> Option<RuntimeFixture> {
    let previous = std::env::var_os(PREVIOUS).map(PathBuf::from)?;
    let settings = format!("runtime: {{agent: {agent}, agent_linger: 1}}\n");
    let ground = RuntimeFixture::new().settings(&settings);
    let folder = ground.scratch.path().join("previous");
    std::fs::create_dir(&folder).expect("it is our folder");
    ground
        .scratch
        .program(&previous, "previous/tollgate-runtime");
    Some(ground)
}

macro_rules! two_builds {
    ($agent:expr) => {{
        need_slow!();
        need_runtime!("runc");
        match ground_of_two_builds($agent) {
            Some(ground) => ground,
            None => skip!("needs a previous build", || Ok(format!(
                "{PREVIOUS} names none"
            ))),
        }
    }};
}

/// Asserts that each container's `echo` was seen as often as it was started, and that nothing was missed.
fn assert_seen(alerts: &[Alert], ids: &[String], times: usize) {
    let found = fields(alerts, "Program", "container.id");
    let names = fields(alerts, "Program", "proc.name");
    let echoes = names.iter().zip(&found).filter(|(name, _)| *name == "echo");
    let mut seen: Vec<_> = echoes.map(|(_, id)| id.clone()).collect();
    seen.sort();
    let mut expected: Vec<_> = ids
        .iter()
        .flat_map(|id| std::iter::repeat_n(id.clone(), times))
        .collect();
    expected.sort();
    assert_eq!(seen, expected, "{alerts:?}");
    let internal = alerts
        .iter()
        .filter(|alert| alert.rule.starts_with("Tollgate"));
    let internal: Vec<_> = internal.collect();
    assert!(internal.is_empty(), "{internal:?}");
}

fn both_builds(ground: &RuntimeFixture) {
    for name in ["by-old", "by-new"] {
        let first = format!("touch /out/{name}; exec sleep 1000");
        ground.bundle(&format!("b-{name}"), &first);
    }
    let (finished, alerts) = ground.run("runc", SCRIPT);
    assert_eq!(finished.code(), 0, "{finished:?}");
    let said = "old by-old\nold by-new\nnew by-old\nnew by-new\n".repeat(3);
    assert_eq!(finished.stdout, said);
    let ids = ["by-new", "by-old"].map(|name| format!("{}-{name}", ground.id));
    assert_seen(&alerts, &ids, 6);
}

fn replaced_under_load(ground: &RuntimeFixture) {
    ground.bundle("b", "exec sleep 1000");
    let (finished, alerts) = ground.run("runc", LOAD);
    assert_eq!(finished.code(), 0, "{finished:?}");
    let of_caller = |caller| (1..=6).map(move |number| format!("{caller}-{number}"));
    let ids = (1..=4).flat_map(of_caller);
    let ids: Vec<_> = ids.map(|name| format!("{}-{name}", ground.id)).collect();
    assert_seen(&alerts, &ids, 2);
}

#[test]
fn two_builds_serve_the_containers_of_each_other() {
    both_builds(&two_builds!("container"));
}

#[test]
fn two_builds_serve_the_containers_of_each_other_with_agents_of_the_host() {
    both_builds(&two_builds!("host"));
}

#[test]
fn a_program_that_is_replaced_under_load_loses_no_container_and_no_alert() {
    replaced_under_load(&two_builds!("container"));
}

#[test]
fn a_program_that_is_replaced_under_load_loses_none_with_agents_of_the_host() {
    replaced_under_load(&two_builds!("host"));
}
