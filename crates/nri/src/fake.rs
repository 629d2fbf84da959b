//! A runtime for tests: it speaks the protocol from the runtime's side, with the limits of containerd.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use prost::Message as _;

use crate::frame::{PLUGIN_CONNECTION, RUNTIME_CONNECTION};
use crate::message::{
    ConfigureRequest, ConfigureResponse, Container, ContainerAdjustment, CreateContainerResponse,
    EventRequest, PLUGIN_SERVICE, PodSandbox, RegisterPluginRequest, Request, Response,
    SynchronizeRequest, SynchronizeResponse,
};
use crate::{Demultiplexer, Message, MessageKind, encode};

/// How long a runtime waits for an answer: containerd's `plugin_request_timeout`.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of pods and containers in one part of a listing.
const PART: usize = 2;

/// A runtime with one plug-in.
#[derive(Debug)]
pub struct FakeRuntime {
    socket: UnixStream,
    demultiplexer: Demultiplexer,
    stream: u32,
    /// What the plug-in said of itself.
    pub registration: RegisterPluginRequest,
    /// Events that the plug-in wants.
    pub events: i32,
}

/// Answer of a plug-in to a runtime.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// The container is created or started, perhaps changed.
    Accepted(Option<ContainerAdjustment>),
    /// The container is refused for this reason.
    Refused(String),
    /// There was no answer in [`REQUEST_TIMEOUT`]: a runtime unregisters the plug-in, and runs the container.
    Unregistered,
}

impl FakeRuntime {
    /// Takes the registration of a plug-in, configures it, and lists what exists, as a runtime does.
    ///
    /// # Errors
    ///
    /// If the plug-in does not follow the protocol, or is late.
    pub fn accept(
        socket: UnixStream,
        pods: &[PodSandbox],
        containers: &[Container],
    ) -> io::Result<Self> {
        let mut runtime = Self {
            socket,
            demultiplexer: Demultiplexer::default(),
            stream: 1,
            registration: RegisterPluginRequest::default(),
            events: 0,
        };
        let wanted = |message: &Message| message.connection == RUNTIME_CONNECTION;
        let message = runtime.wait(wanted)?.ok_or(io::ErrorKind::TimedOut)?;
        let request = Request::decode(&*message.payload).map_err(io::Error::other)?;
        runtime.registration =
            RegisterPluginRequest::decode(&*request.payload).map_err(io::Error::other)?;
        runtime.send(
            RUNTIME_CONNECTION,
            message.stream,
            MessageKind::Response,
            Vec::new(),
        )?;
        let configure = ConfigureRequest {
            runtime_name: "fake".to_owned(),
            registration_timeout: 5000,
            request_timeout: 2000,
            ..ConfigureRequest::default()
        };
        let configured: ConfigureResponse = runtime.decoded("Configure", &configure)?;
        runtime.events = configured.events;
        runtime.list(pods, containers)?;
        Ok(runtime)
    }

    /// Lists what exists, in parts.
    fn list(&mut self, pods: &[PodSandbox], containers: &[Container]) -> io::Result<()> {
        let (mut pods, mut containers) = (pods.chunks(PART), containers.chunks(PART));
        loop {
            let part = SynchronizeRequest {
                pods: pods.next().unwrap_or_default().to_vec(),
                containers: containers.next().unwrap_or_default().to_vec(),
                more: pods.len() + containers.len() > 0,
            };
            let answer: SynchronizeResponse = self.decoded("Synchronize", &part)?;
            if answer.more != part.more {
                return Err(io::Error::other("the plug-in does not wait for all parts"));
            }
            if !part.more {
                return Ok(());
            }
        }
    }

    /// Asks the plug-in about an event, such as `CreateContainer`.
    ///
    /// # Errors
    ///
    /// If the plug-in closes the connection or does not follow the protocol.
    pub fn ask(
        &mut self,
        method: &str,
        pod: &PodSandbox,
        container: Option<&Container>,
    ) -> io::Result<Reply> {
        let request = EventRequest {
            pod: Some(pod.clone()),
            container: container.cloned(),
        };
        let Some(response) = self.call(PLUGIN_SERVICE, method, request.encode_to_vec())? else {
            return Ok(Reply::Unregistered);
        };
        if let Some(status) = response.status.filter(|status| status.code != 0) {
            return Ok(Reply::Refused(status.message));
        }
        let answer = CreateContainerResponse::decode(&*response.payload);
        Ok(Reply::Accepted(answer.map_err(io::Error::other)?.adjust))
    }

    fn decoded<T: prost::Message + Default>(
        &mut self,
        method: &str,
        request: &impl prost::Message,
    ) -> io::Result<T> {
        let response = self.call(PLUGIN_SERVICE, method, request.encode_to_vec())?;
        let response = response.ok_or(io::ErrorKind::TimedOut)?;
        match response.status.filter(|status| status.code != 0) {
            None => T::decode(&*response.payload).map_err(io::Error::other),
            Some(status) => Err(io::Error::other(status.message)),
        }
    }

    /// Calls the plug-in; `None` if it does not answer in time.
    ///
    /// # Errors
    ///
    /// If the plug-in closes the connection or does not follow the protocol.
    pub fn call(
        &mut self,
        service: &str,
        method: &str,
        payload: Vec<u8>,
    ) -> io::Result<Option<Response>> {
        let request = Request {
            service: service.to_owned(),
            method: method.to_owned(),
            payload,
            timeout_nano: 2_000_000_000,
        };
        let stream = self.stream;
        self.stream += 2;
        self.send(
            PLUGIN_CONNECTION,
            stream,
            MessageKind::Request,
            request.encode_to_vec(),
        )?;
        let wanted =
            |message: &Message| (message.connection, message.stream) == (PLUGIN_CONNECTION, stream);
        let Some(message) = self.wait(wanted)? else {
            return Ok(None);
        };
        Response::decode(&*message.payload)
            .map(Some)
            .map_err(io::Error::other)
    }

    fn send(
        &mut self,
        connection: u32,
        stream: u32,
        kind: MessageKind,
        payload: Vec<u8>,
    ) -> io::Result<()> {
        let message = Message {
            connection,
            stream,
            kind,
            payload,
        };
        self.socket
            .write_all(&encode(&message).map_err(io::Error::other)?)
    }

    /// Waits for a message; `None` at the end of [`REQUEST_TIMEOUT`].
    fn wait(&mut self, wanted: impl Fn(&Message) -> bool) -> io::Result<Option<Message>> {
        let end = Instant::now() + REQUEST_TIMEOUT;
        let mut buffer = [0; 4096];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.socket.set_read_timeout(Some(left))?;
            let length = match self.socket.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            };
            let messages = self
                .demultiplexer
                .push(&buffer[..length])
                .map_err(io::Error::other)?;
            if let Some(message) = messages.into_iter().find(|message| wanted(message)) {
                return Ok(Some(message));
            }
        }
    }
}
