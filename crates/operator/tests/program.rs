//! Tests of the program's command line.

use std::process::{Command, Output};

fn operator(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate-operator"));
    for variable in ["POD_NAMESPACE", "POD_NAME", "KUBERNETES_SERVICE_HOST"] {
        command.env_remove(variable);
    }
    command
        .args(arguments)
        .output()
        .expect("the program was built")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn crds_are_printed_as_a_stream_of_yaml() {
    let output = operator(&["crds"]);
    assert!(output.status.success());
    let printed = text(&output.stdout);
    assert_eq!(
        printed
            .matches("---\napiVersion: apiextensions.k8s.io/v1\n")
            .count(),
        7
    );
    assert!(
        printed.contains("\n  name: varmorpolicies.crd.varmor.org\n"),
        "{printed}"
    );
}

#[test]
fn what_is_missing_to_run_is_named_with_exit_code_2() {
    for (arguments, expected) in [
        (
            &["run"][..],
            "cannot run without --namespace and --name\nhelp: in a pod, set POD_NAMESPACE",
        ),
        (
            &["run", "--namespace", "a", "--name", "b"],
            "`KUBERNETES_SERVICE_HOST` is not set, so this is no pod",
        ),
        (
            &[
                "run",
                "--namespace",
                "a",
                "--name",
                "b",
                "--server",
                "http://192.0.2.1:80",
            ],
            "cannot use the API server `http://192.0.2.1:80`: http:// is only for a server on loopback",
        ),
    ] {
        let output = operator(arguments);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains(expected), "{message}");
    }
}
