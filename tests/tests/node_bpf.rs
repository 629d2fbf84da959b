//! `tollgate node --bpf`: the kernel confines the programs of a container that another runtime makes.

use std::time::Duration;

use e2e::Guest;
use e2e::bpf_node::{
    Node, READ, SECRET, Started, in_group, inside, is_confined, policy, run_inside, write_files,
};

const LIMIT: Duration = Duration::from_secs(900);

#[test]
fn the_kernel_confines_a_container_of_another_runtime() {
    if inside().is_some() {
        return confine();
    }
    if let Some(missing) = Guest::missing() {
        e2e::skip!("has no machine to emulate", || Ok(missing.clone()));
    }
    let test = "the_kernel_confines_a_container_of_another_runtime";
    let _ = run_inside(Guest::new(), test, LIMIT);
}

fn confine() {
    write_files();
    let mut node = Node::new(&policy(&[SECRET], false), &[]);
    node.accept(&[]);
    let (web, twin) = (node.make("web"), node.make("twin"));
    web.begin();
    twin.begin();
    is_confined(|command| web.exec(command), "a session");
    is_confined(
        |command| {
            let words = ["unshare", "--mount", "--"].iter().chain(command);
            web.exec(&words.copied().collect::<Vec<_>>())
        },
        "another mount namespace",
    );
    assert_eq!(
        twin.exec(&READ).stdout,
        b"secret\n",
        "the twin has no policy"
    );
    // The runtime's own programs are in the control group before they enter the container.
    let runtime = in_group(&web.group, &READ).output().expect("cat");
    assert_eq!(runtime.stdout, b"secret\n", "{runtime:?}");
    node.reports(|profile| profile["containers"] == 1 && profile["enforced"] == 1);
    // Sessions enter the namespaces that the first process has by now.
    let moved = node.make_with("web", "exec unshare --mount sleep 1000");
    moved.begin();
    is_confined(|command| moved.exec(command), "a session elsewhere");
    drop(moved);
    first_program(&mut node);
    without_agent(&mut node, &web);
    drop(web);
    node.kill_agent();
    node.start_agent();
    node.accept(&[]);
    let again = node.make("web");
    again.begin();
    is_confined(
        |command| again.exec(command),
        "a container of the next agent",
    );
}

/// The first program of a container is confined as well: nothing is entered afterwards.
fn first_program(node: &mut Node) {
    let program = format!("exec cat /etc/other {SECRET}");
    let first = node.make_with("web", &program);
    first.open_gate();
    first.has_denied_first_program();
}

/// What the kernel has stays in force while no agent lives, and the next one reports it.
fn without_agent(node: &mut Node, web: &Started) {
    node.kill_agent();
    is_confined(|command| web.exec(command), "without an agent");
    node.start_agent();
    node.accept(&[web.running()]);
    node.reports(|profile| profile["containers"] == 1 && profile["enforced"] == 1);
    is_confined(|command| web.exec(command), "with the next agent");
}
