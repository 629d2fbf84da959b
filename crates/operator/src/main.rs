//! The program `tollgate-operator`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::{env, io, thread};

use apiserver::{Access, AccessError, Client};
use clap::{Args, Parser, Subcommand};
use operator::manifests::{self, Installation};
use operator::{Operator, Settings, WebhookSettings, chain_of, serve_pages};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Exit code for bad input, as of all programs of tollgate.
const BAD_INPUT: u8 = 2;
/// Exit code for an operator that has ended.
const ENDED: u8 = 4;

/// Turns policies of a Kubernetes cluster into profiles of its nodes, and their reports into status
#[derive(Debug, Parser)]
#[command(name = "tollgate-operator", version)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print the CustomResourceDefinitions, for `kubectl apply --server-side -f -`
    Crds,
    /// Print everything that an installation consists of, for `kubectl apply --server-side -f -`
    Manifests(ManifestOptions),
    /// Run the operator
    Run(Run),
}

#[derive(Debug, Args)]
struct ManifestOptions {
    /// Image with the programs tollgate and tollgate-operator
    #[arg(long)]
    image: String,
    /// Namespace of the installation
    #[arg(long, default_value = "tollgate", conflicts_with = "chart")]
    namespace: String,
    /// Have agents watch their nodes, with the capabilities and rights that this needs
    #[arg(long)]
    detect: bool,
    /// Have agents write Events of pods, with the right that this needs
    #[arg(long)]
    events: bool,
    /// Have agents follow violations that `tollgate runtime` reports, and write vArmor's log of them
    #[arg(long)]
    violations: bool,
    /// Have agents observe the containers of policies in the mode BehaviorModeling, with the capabilities that this needs
    #[arg(long)]
    behavior_modeling: bool,
    /// Have the operator restart existing workloads of policies with updateExistingWorkloads, with the right that this needs
    #[arg(long)]
    update_workloads: bool,
    /// Have agents enforce what policies ask of BPF in the containers of every runtime, with the capabilities that this needs
    #[arg(long)]
    bpf: bool,
    /// Have operators give workloads their marks by a webhook: for Kubernetes before 1.36, and for more than about 100 policies in a
    /// namespace
    #[arg(long)]
    webhook: bool,
    /// Leave the workloads of this namespace without marks, because its pods are needed before operators can run
    #[arg(long, value_name = "NAME", requires = "webhook")]
    webhook_exempt: Vec<String>,
    /// Have operators run with this --webhook-name, for an API server that reaches the webhook by another name than its Service's
    #[arg(long, value_name = "NAME", requires = "webhook")]
    webhook_name: Vec<String>,
    /// Write a Helm chart into this folder instead
    #[arg(long, value_name = "DIR")]
    chart: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Run {
    /// Namespace of the installation, where profiles of cluster policies and the lease lie (default: $POD_NAMESPACE)
    #[arg(long)]
    namespace: Option<String>,
    /// Name of this operator among those of the installation (default: $POD_NAME)
    #[arg(long)]
    name: Option<String>,
    /// Serve /metrics and /healthz at this address
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<SocketAddr>,
    /// Take policies in the mode BehaviorModeling: agents run with --behavior-modeling, too
    #[arg(long)]
    behavior_modeling: bool,
    /// Restart existing workloads of policies with updateExistingWorkloads, one at a time
    #[arg(long)]
    update_workloads: bool,
    /// Serve the webhook at this address, and keep its certificates in the Secret tollgate-webhook
    #[arg(long, value_name = "IP:PORT")]
    webhook: Option<SocketAddr>,
    /// Name in the webhook's certificates besides that of its Service, for an API server that reaches it by another
    #[arg(long, value_name = "NAME", requires = "webhook")]
    webhook_name: Vec<String>,
    /// Address of the API server (default: the one that a pod gets from Kubernetes)
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Certificates that may sign that of --server
    #[arg(long, value_name = "FILE", requires = "server")]
    certificate_authority: Option<PathBuf>,
    /// Token for --server
    #[arg(long, value_name = "FILE", requires = "server")]
    token: Option<PathBuf>,
    /// Certificate for --server
    #[arg(long, value_name = "FILE", requires = "client_key")]
    client_certificate: Option<PathBuf>,
    /// Key of --client-certificate
    #[arg(long, value_name = "FILE", requires = "client_certificate")]
    client_key: Option<PathBuf>,
    /// Take server and credentials from the current context of this file
    #[arg(long, value_name = "FILE", conflicts_with = "server")]
    kubeconfig: Option<PathBuf>,
}

impl Run {
    fn access(&self) -> Result<Access, AccessError> {
        if let Some(path) = &self.kubeconfig {
            return Access::kubeconfig(path);
        }
        let Some(server) = &self.server else {
            return Access::in_cluster();
        };
        Ok(Access::files(
            server,
            self.certificate_authority.clone(),
            self.token.clone(),
            self.client_certificate.clone().zip(self.client_key.clone()),
        ))
    }
}

fn print_manifests(options: ManifestOptions) -> ExitCode {
    let installation = Installation {
        namespace: options.namespace,
        image: options.image,
        detect: options.detect,
        events: options.events,
        violations: options.violations,
        behavior_modeling: options.behavior_modeling,
        update_workloads: options.update_workloads,
        bpf: options.bpf,
        webhook: options.webhook,
        webhook_exempt: options.webhook_exempt,
        webhook_names: options.webhook_name,
    };
    let Some(folder) = &options.chart else {
        let all = manifests::all(&installation);
        print!("{}", kinds::yaml_text::stream(&all));
        return ExitCode::SUCCESS;
    };
    match manifests::write_chart(folder, &installation) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, BAD_INPUT),
    }
}

fn main() -> ExitCode {
    match Arguments::parse().verb {
        Verb::Crds => {
            print!("{}", kinds::yaml_text::stream(&kinds::crd::all()));
            ExitCode::SUCCESS
        }
        Verb::Manifests(options) => print_manifests(options),
        Verb::Run(run) => {
            let (Some(namespace), Some(name)) = (
                value(run.namespace.as_ref(), "POD_NAMESPACE"),
                value(run.name.as_ref(), "POD_NAME"),
            ) else {
                eprintln!("tollgate-operator: cannot run without --namespace and --name");
                eprintln!("help: in a pod, set POD_NAMESPACE and POD_NAME by the downward API");
                return ExitCode::from(BAD_INPUT);
            };
            let client = run
                .access()
                .and_then(|access| Client::new(&access, "tollgate-operator"));
            let client = match client {
                Ok(client) => client,
                Err(error) => return fail(&error, BAD_INPUT),
            };
            let settings = Settings {
                behavior_modeling: run.behavior_modeling,
                update_workloads: run.update_workloads,
                ..Settings::new(&namespace, &name)
            };
            let operator = Arc::new(Operator::new(client, settings));
            if let Err(error) = end_by_signal(Arc::clone(&operator)) {
                return fail(&error, ENDED);
            }
            let served = run
                .listen
                .map(|address| serve_pages(operator.metrics(), address));
            let _server = match served.transpose() {
                Ok(server) => server,
                Err(error) => return fail(&error, BAD_INPUT),
            };
            let webhook = run.webhook.map(|listen| {
                let settings = WebhookSettings {
                    names: run.webhook_name.clone(),
                    ..WebhookSettings::new(listen)
                };
                operator.serve_webhook(settings, |message| {
                    eprintln!("tollgate-operator: {message}");
                })
            });
            let _webhook = match webhook.transpose() {
                Ok(webhook) => webhook,
                Err(error) => return fail(&error, BAD_INPUT),
            };
            match operator.run(|message| eprintln!("tollgate-operator: {message}")) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => fail(&error, ENDED),
            }
        }
    }
}

/// Ends the program by a signal. In a pod it is the first process, which no signal ends by itself: the kubelet would
/// wait half a minute, and kill it then.
fn end_by_signal(operator: Arc<Operator>) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    thread::spawn(move || {
        if signals.forever().next().is_some() {
            if let Err(error) = operator.release() {
                eprintln!("tollgate-operator: cannot give up the lease: {error}");
            }
            process::exit(0);
        }
    });
    Ok(())
}

/// The value of an option, or of a variable in its place.
fn value(option: Option<&String>, variable: &str) -> Option<String> {
    option
        .cloned()
        .or_else(|| env::var(variable).ok())
        .filter(|value| !value.is_empty())
}

/// Prints an error with its causes.
fn fail(error: &dyn std::error::Error, code: u8) -> ExitCode {
    eprintln!("tollgate-operator: {}", chain_of(error));
    ExitCode::from(code)
}
