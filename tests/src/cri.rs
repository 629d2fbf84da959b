//! A client of container engines by Kubernetes' container runtime interface (CRI), as the kubelet and crictl are.

use std::collections::HashMap;
use std::path::Path;

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;

/// `NamespaceMode::NODE`: the namespace of the host.
const NODE: i32 = 2;
/// Length of the header of a gRPC message: compression, and the message's length.
const HEADER: usize = 5;

#[derive(Clone, PartialEq, Message)]
struct Name {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct PodName {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    uid: String,
    #[prost(string, tag = "3")]
    namespace: String,
}

#[derive(Clone, PartialEq, Message)]
struct NamespaceOptions {
    #[prost(int32, tag = "1")]
    network: i32,
}

#[derive(Clone, PartialEq, Message)]
struct PodSecurity {
    #[prost(message, optional, tag = "1")]
    namespaces: Option<NamespaceOptions>,
}

#[derive(Clone, PartialEq, Message)]
struct LinuxPod {
    #[prost(string, tag = "1")]
    parent_group: String,
    #[prost(message, optional, tag = "2")]
    security: Option<PodSecurity>,
}

#[derive(Clone, PartialEq, Message)]
struct Pod {
    #[prost(message, optional, tag = "1")]
    name: Option<PodName>,
    #[prost(map = "string, string", tag = "6")]
    labels: HashMap<String, String>,
    #[prost(map = "string, string", tag = "7")]
    annotations: HashMap<String, String>,
    #[prost(message, optional, tag = "8")]
    linux: Option<LinuxPod>,
}

#[derive(Clone, PartialEq, Message)]
struct RunPod {
    #[prost(message, optional, tag = "1")]
    config: Option<Pod>,
    #[prost(string, tag = "2")]
    runtime: String,
}

/// The answer of calls that make something, and the request of calls that name a pod or container.
#[derive(Clone, PartialEq, Message)]
struct Id {
    #[prost(string, tag = "1")]
    id: String,
}

#[derive(Clone, PartialEq, Message)]
struct Container {
    #[prost(message, optional, tag = "1")]
    name: Option<Name>,
    #[prost(message, optional, tag = "2")]
    image: Option<Name>,
    #[prost(string, repeated, tag = "3")]
    command: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct CreateContainer {
    #[prost(string, tag = "1")]
    pod: String,
    #[prost(message, optional, tag = "2")]
    config: Option<Container>,
    #[prost(message, optional, tag = "3")]
    pod_config: Option<Pod>,
}

/// `ContainerState::CONTAINER_EXITED`.
const EXITED: i32 = 2;

#[derive(Clone, PartialEq, Message)]
struct ContainerStatus {
    #[prost(int32, tag = "3")]
    state: i32,
    #[prost(int32, tag = "7")]
    exit_code: i32,
}

/// The answer about the status of a container.
#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(message, optional, tag = "1")]
    status: Option<ContainerStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct Exec {
    #[prost(string, tag = "1")]
    container: String,
    #[prost(string, repeated, tag = "2")]
    command: Vec<String>,
    #[prost(int64, tag = "3")]
    timeout: i64,
}

/// The result of a program in a container.
#[derive(Clone, PartialEq, Message)]
pub struct Executed {
    /// Standard output.
    #[prost(bytes = "vec", tag = "1")]
    pub stdout: Vec<u8>,
    /// Standard error.
    #[prost(bytes = "vec", tag = "2")]
    pub stderr: Vec<u8>,
    /// Exit code.
    #[prost(int32, tag = "3")]
    pub code: i32,
}

/// A client of one engine.
#[derive(Debug)]
pub struct Cri {
    runtime: tokio::runtime::Runtime,
    client: http2::SendRequest<Full<Bytes>>,
    parent_group: String,
}

/// A running pod.
#[derive(Clone, Debug)]
pub struct RunningPod {
    id: String,
    config: Pod,
}

impl Cri {
    /// Connects to the socket of an engine.
    ///
    /// # Panics
    /// If nobody listens there.
    pub fn connect(socket: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime can be made");
        let client = runtime.block_on(async {
            let stream = tokio::net::UnixStream::connect(socket).await;
            let stream = TokioIo::new(stream.expect("the engine listens"));
            let (client, connection) = http2::handshake(TokioExecutor::new(), stream)
                .await
                .expect("the engine speaks HTTP");
            tokio::spawn(connection);
            client
        });
        let parent_group = String::new();
        Self {
            runtime,
            client,
            parent_group,
        }
    }

    /// Sets the control group below which pods get theirs, as the kubelet names one. The engine does not remove it.
    pub fn set_parent_group(&mut self, path: &str) {
        path.clone_into(&mut self.parent_group);
    }

    /// Starts a pod with the network of the host. The error is the engine's message.
    ///
    /// # Errors
    /// If the engine refuses it.
    pub fn run_pod(
        &mut self,
        name: &str,
        handler: &str,
        annotations: &[(&str, &str)],
    ) -> Result<RunningPod, String> {
        self.run_pod_with(name, handler, annotations, &[])
    }

    /// Like [`Cri::run_pod`], with labels.
    ///
    /// # Errors
    /// If the engine refuses it.
    pub fn run_pod_with(
        &mut self,
        name: &str,
        handler: &str,
        annotations: &[(&str, &str)],
        labels: &[(&str, &str)],
    ) -> Result<RunningPod, String> {
        let namespaces = Some(NamespaceOptions { network: NODE });
        let security = Some(PodSecurity { namespaces });
        let text = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let config = Pod {
            name: Some(PodName {
                name: name.to_owned(),
                uid: format!("uid-of-{name}"),
                namespace: "prod".to_owned(),
            }),
            labels: labels.iter().map(text).collect(),
            annotations: annotations.iter().map(text).collect(),
            linux: Some(LinuxPod {
                parent_group: self.parent_group.clone(),
                security,
            }),
        };
        let request = RunPod {
            config: Some(config.clone()),
            runtime: handler.to_owned(),
        };
        let Id { id } = self.call("RunPodSandbox", &request)?;
        Ok(RunningPod { id, config })
    }

    /// Creates and starts a container in a pod. Returns its id.
    ///
    /// # Errors
    /// If the engine refuses it.
    pub fn run_container(
        &mut self,
        pod: &RunningPod,
        image: &str,
        command: &[&str],
    ) -> Result<String, String> {
        let id = self.create_container(pod, "app", image, command)?;
        self.start_container(&id)?;
        Ok(id)
    }

    /// Creates a container of this name in a pod. Returns its id.
    ///
    /// # Errors
    /// If the engine refuses it.
    pub fn create_container(
        &mut self,
        pod: &RunningPod,
        name: &str,
        image: &str,
        command: &[&str],
    ) -> Result<String, String> {
        let named = |name: &str| {
            let name = name.to_owned();
            Some(Name { name })
        };
        let request = CreateContainer {
            pod: pod.id.clone(),
            config: Some(Container {
                name: named(name),
                image: named(image),
                command: command.iter().map(ToString::to_string).collect(),
            }),
            pod_config: Some(pod.config.clone()),
        };
        let Id { id } = self.call("CreateContainer", &request)?;
        Ok(id)
    }

    /// Starts a created container.
    ///
    /// # Errors
    /// If the engine refuses it.
    pub fn start_container(&mut self, id: &str) -> Result<(), String> {
        let _: Id = self.call("StartContainer", &Id { id: id.to_owned() })?;
        Ok(())
    }

    /// Exit code of a container; nothing while it runs.
    ///
    /// # Errors
    /// If the engine does not know it.
    pub fn exit_code(&mut self, id: &str) -> Result<Option<i32>, String> {
        let Status { status } = self.call("ContainerStatus", &Id { id: id.to_owned() })?;
        let status = status.ok_or_else(|| format!("{id} has no status"))?;
        Ok((status.state == EXITED).then_some(status.exit_code))
    }

    /// Runs a program in a container, as a probe of the kubelet does.
    ///
    /// # Errors
    /// If the engine cannot run it.
    pub fn exec(&mut self, container: &str, command: &[&str]) -> Result<Executed, String> {
        let request = Exec {
            container: container.to_owned(),
            command: command.iter().map(ToString::to_string).collect(),
            timeout: 60,
        };
        self.call("ExecSync", &request)
    }

    /// Stops and removes a pod with its containers.
    ///
    /// # Errors
    /// If the engine cannot remove it.
    pub fn remove_pod(&mut self, pod: &RunningPod) -> Result<(), String> {
        let request = Id { id: pod.id.clone() };
        let _: Id = self.call("StopPodSandbox", &request)?;
        let _: Id = self.call("RemovePodSandbox", &request)?;
        Ok(())
    }

    fn call<A: Message + Default>(
        &mut self,
        method: &str,
        request: &impl Message,
    ) -> Result<A, String> {
        let mut body = BytesMut::new();
        body.put_u8(0);
        body.put_u32(u32::try_from(request.encoded_len()).expect("it is short"));
        request.encode(&mut body).expect("the buffer grows");
        let request = hyper::Request::post(format!(
            "http://localhost/runtime.v1.RuntimeService/{method}"
        ))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(body.freeze()))
        .expect("it is a request");
        let response = self.client.send_request(request);
        let (head, body) = self.runtime.block_on(async {
            let (head, body) = response.await.expect("the engine answers").into_parts();
            (head, body.collect().await.expect("the answer ends"))
        });
        let trailers = body.trailers().cloned().unwrap_or(head.headers);
        let text = |name: &str| {
            let value = trailers.get(name)?;
            Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        match text("grpc-status").as_deref() {
            Some("0") => {
                let bytes = body.to_bytes();
                Ok(A::decode(&bytes[HEADER..]).expect("it is the answer of this call"))
            }
            status => Err(format!(
                "{method}: {}: {}",
                status.unwrap_or("no status"),
                text("grpc-message").unwrap_or_default()
            )),
        }
    }
}
