//! A real API server for tests: etcd and kube-apiserver on loopback, which end with the value.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, io, thread};

use kinds::ObjectKey;
use serde_json::json;

use crate::{Access, Client, Resource};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Options of the server that are always the same.
const ARGUMENTS: [&str; 9] = [
    "--bind-address=127.0.0.1",
    "--cert-dir=certs",
    "--token-auth-file=tokens.csv",
    "--authorization-mode=RBAC",
    // As installers of clusters set it.
    "--allow-privileged=true",
    "--service-account-issuer=https://kubernetes.default.svc",
    "--service-account-key-file=sa.pub",
    "--service-account-signing-key-file=sa.key",
    "--service-cluster-ip-range=10.0.0.0/24",
];

/// Where the programs are.
#[derive(Clone, Debug)]
pub struct Programs {
    apiserver: PathBuf,
    etcd: PathBuf,
}

impl Programs {
    /// Finds kube-apiserver in the cache that `TOLLGATE_CACHE` names, and etcd in `PATH`.
    ///
    /// # Errors
    ///
    /// With what is missing.
    pub fn find() -> Result<Self, String> {
        let cache = env::var_os("TOLLGATE_CACHE").ok_or("TOLLGATE_CACHE is not set")?;
        let apiserver = Path::new(&cache).join("kubernetes/bin/kube-apiserver");
        let path = env::var_os("PATH").unwrap_or_else(|| "/usr/bin".into());
        let mut found = env::split_paths(&path).map(|folder| folder.join("etcd"));
        let etcd = found.find(|path| path.exists()).ok_or("PATH has no etcd")?;
        match apiserver.exists() {
            true => Ok(Self { apiserver, etcd }),
            false => Err(format!("there is no {}", apiserver.display())),
        }
    }
}

/// What the API server of a cluster with nodes has besides.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cluster<'a> {
    /// Options, in place of the usual ones of the same names.
    pub arguments: &'a [&'a str],
    /// Lines of the file of tokens: `TOKEN,USER,UID,"GROUPS"`.
    pub tokens: &'a str,
}

/// A program that ends with the test.
#[derive(Debug)]
pub struct Running(Child);

impl Running {
    /// Starts a program that writes its log to a file.
    ///
    /// # Errors
    ///
    /// If the file or the process cannot be made.
    pub fn start(mut command: Command, log: &Path) -> io::Result<Self> {
        let log = fs::File::create(log)?;
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Ok(Self(command.stderr(log).spawn()?))
    }

    /// Kills the program and waits for its end.
    ///
    /// # Errors
    ///
    /// If it cannot be killed.
    pub fn kill(&mut self) -> io::Result<()> {
        self.0.kill()?;
        self.0.wait().map(drop)
    }

    /// Pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.kill();
    }
}

/// A running API server. Its folder belongs to the caller.
#[derive(Debug)]
pub struct RealApiserver {
    /// Its address.
    pub server: String,
    folder: PathBuf,
    /// A client that may do everything.
    pub client: Client,
    apiserver: PathBuf,
    arguments: Vec<String>,
    process: Running,
    _etcd: Running,
}

impl RealApiserver {
    /// Starts it with files in a folder, and waits until it answers. `key` is a private key and its public one, with
    /// which tokens of service accounts are signed.
    ///
    /// # Errors
    ///
    /// If it does not start; with its log.
    pub fn start(programs: &Programs, folder: &Path, key: [&str; 2]) -> Result<Self, String> {
        let address = format!("127.0.0.1:{}", free_port()?);
        Self::start_at(programs, folder, key, &address, &Cluster::default())
    }

    /// Like [`RealApiserver::start`], at an address `IP:PORT`, as a cluster needs it.
    ///
    /// # Errors
    ///
    /// If it does not start; with its log.
    pub fn start_at(
        programs: &Programs,
        folder: &Path,
        key: [&str; 2],
        address: &str,
        cluster: &Cluster<'_>,
    ) -> Result<Self, String> {
        let failed = |error: io::Error| error.to_string();
        fs::write(folder.join("sa.key"), key[0]).map_err(failed)?;
        fs::write(folder.join("sa.pub"), key[1]).map_err(failed)?;
        fs::write(folder.join("token"), "secret").map_err(failed)?;
        let tokens = format!("secret,admin,admin,\"system:masters\"\n{}", cluster.tokens);
        fs::write(folder.join("tokens.csv"), tokens).map_err(failed)?;
        let [clients, peers] = [free_port()?, free_port()?];
        let (_, port) = address.rsplit_once(':').ok_or("the address has no port")?;
        let clients = format!("http://127.0.0.1:{clients}");
        let mut etcd = Command::new(&programs.etcd);
        etcd.current_dir(folder).args([
            "--data-dir=etcd".to_owned(),
            format!("--listen-client-urls={clients}"),
            format!("--advertise-client-urls={clients}"),
            format!("--listen-peer-urls=http://127.0.0.1:{peers}"),
            format!("--initial-advertise-peer-urls=http://127.0.0.1:{peers}"),
            format!("--initial-cluster=default=http://127.0.0.1:{peers}"),
        ]);
        let etcd = Running::start(etcd, &folder.join("etcd.log")).map_err(failed)?;
        let is_replaced = |argument: &&str| {
            let name = argument.split('=').next();
            let mut others = cluster.arguments.iter();
            others.any(|other| other.split('=').next() == name)
        };
        let usual = ARGUMENTS.iter().copied();
        let usual = usual.filter(|argument| !is_replaced(argument));
        let mut arguments: Vec<String> = usual.map(str::to_owned).collect();
        arguments.extend(
            cluster
                .arguments
                .iter()
                .map(|&argument| argument.to_owned()),
        );
        arguments.push(format!("--etcd-servers={clients}"));
        arguments.push(format!("--secure-port={port}"));
        let process = start_server(&programs.apiserver, folder, &arguments).map_err(failed)?;
        let address = format!("https://{address}");
        let client = connect(&address, folder)?;
        Ok(Self {
            server: address,
            folder: folder.to_owned(),
            client,
            apiserver: programs.apiserver.clone(),
            arguments,
            process,
            _etcd: etcd,
        })
    }

    /// Kills the server. What it has stays in etcd.
    ///
    /// # Errors
    ///
    /// If it cannot be killed.
    pub fn stop(&mut self) -> Result<(), String> {
        self.process.kill().map_err(|error| error.to_string())
    }

    /// Starts the server again at the same address, and waits until it answers.
    ///
    /// # Errors
    ///
    /// If it does not start; with its log.
    pub fn restart(&mut self) -> Result<(), String> {
        let process = start_server(&self.apiserver, &self.folder, &self.arguments);
        self.process = process.map_err(|error| error.to_string())?;
        connect(&self.server, &self.folder).map(drop)
    }

    /// Options by which programs of ours find the server.
    #[must_use]
    pub fn options(&self) -> Vec<String> {
        let file = |name: &str| self.folder.join(name).display().to_string();
        [
            ("--server", self.server.clone()),
            ("--certificate-authority", file("certs/apiserver.crt")),
            ("--token", file("token")),
        ]
        .into_iter()
        .flat_map(|(option, value)| [option.to_owned(), value])
        .collect()
    }

    /// A client with another token.
    ///
    /// # Errors
    ///
    /// If the file cannot be written or used.
    pub fn client_with(&self, name: &str, token: &str) -> Result<Client, String> {
        let path = self.folder.join(format!("token-of-{name}"));
        fs::write(&path, token).map_err(|error| error.to_string())?;
        let authority = self.folder.join("certs/apiserver.crt");
        let access = Access::files(&self.server, Some(authority), Some(path), None);
        Client::new(&access, name).map_err(|error| error.to_string())
    }

    /// Writes the definitions of all kinds and some namespaces, and waits until the kinds are served.
    ///
    /// # Errors
    ///
    /// If the server refuses one.
    pub fn install(&self, namespaces: &[&str]) -> Result<(), String> {
        let crds = Resource::new("apiextensions.k8s.io", "v1", "customresourcedefinitions");
        let apply = |resource: &Resource, object: &serde_json::Value| {
            let applied = self.client.apply(resource, object);
            applied.map(drop).map_err(|error| format!("{error:?}"))
        };
        for crd in kinds::crd::all() {
            apply(&crds, &crd)?;
        }
        for name in namespaces {
            let object =
                json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
            apply(&Resource::new("", "v1", "namespaces"), &object)?;
        }
        for definition in &kinds::crd::DEFINITIONS {
            let resource = Resource::of(definition);
            until(|| {
                self.client
                    .list(&resource, drop)
                    .map(drop)
                    .map_err(|error| error.to_string())
            })?;
        }
        Ok(())
    }
}

/// Tries again until something succeeds.
///
/// # Errors
///
/// With the last error after a minute.
pub fn until<T>(mut attempt: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    let end = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Err(_) if Instant::now() < end => thread::sleep(Duration::from_millis(100)),
            done => return done,
        }
    }
}

fn start_server(program: &Path, folder: &Path, arguments: &[String]) -> io::Result<Running> {
    let mut server = Command::new(program);
    server.current_dir(folder).args(arguments);
    Running::start(server, &folder.join("kube-apiserver.log"))
}

fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    Ok(address.port())
}

fn connect(server: &str, folder: &Path) -> Result<Client, String> {
    let files = || {
        Access::files(
            server,
            Some(folder.join("certs/apiserver.crt")),
            Some(folder.join("token")),
            None,
        )
    };
    let default = ObjectKey {
        namespace: String::new(),
        name: "default".to_owned(),
    };
    let connected = until(|| {
        let client = Client::new(&files(), "tester").map_err(|error| error.to_string())?;
        let all = Resource::new("", "v1", "namespaces");
        let answer = client.get(&all, &default);
        answer.map(|_| client).map_err(|error| format!("{error:?}"))
    });
    connected.map_err(|error| {
        let log = fs::read_to_string(folder.join("kube-apiserver.log"));
        format!("{error} {}", log.unwrap_or_else(|error| error.to_string()))
    })
}
