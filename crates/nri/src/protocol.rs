//! The plug-in's side of the protocol, without I/O.

use prost::Message as _;

use std::time::Duration;

use crate::frame::{PLUGIN_CONNECTION, RUNTIME_CONNECTION, encode};
use crate::message::{
    ConfigureRequest, ConfigureResponse, Container, ContainerAdjustment, CreateContainerResponse,
    Empty, EventRequest, PLUGIN_SERVICE, PodSandbox, RUNTIME_SERVICE, RegisterPluginRequest,
    Request, Response, StateChangeEvent, Status, SynchronizeRequest, SynchronizeResponse,
};
use crate::{FrameError, Message, MessageKind};

/// Maximum number of pods and containers together that a runtime may list. A node has at most some hundreds.
pub const MAX_LISTED: usize = 100_000;

/// Version of NRI that the messages are of.
const NRI_VERSION: &str = "0.12.0";
/// Stream of the registration: the first one of a client.
const REGISTRATION: u32 = 1;
/// Codes of gRPC.
const UNKNOWN: i32 = 2;
const INVALID_ARGUMENT: i32 = 3;
const UNIMPLEMENTED: i32 = 12;

/// How a plug-in presents itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Name: letters, digits and `-_.+`.
    pub name: String,
    /// From 0 to 99: plug-ins are called in this order.
    pub index: u8,
    /// How long an answer may take. It has to be well below the runtime's limit, which is 2 s by default.
    pub deadline: Duration,
}

/// What happens to a pod or a container.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// All pods and containers that exist, after the connection was made.
    Synchronize {
        /// Pods.
        pods: Vec<PodSandbox>,
        /// Containers.
        containers: Vec<Container>,
    },
    /// A pod starts: it has its network.
    RunPod(PodSandbox),
    /// A pod has ended.
    RemovePod(PodSandbox),
    /// A container is about to be created, and can be changed.
    CreateContainer(Box<(PodSandbox, Container)>),
    /// A container exists, with its control group and namespaces; its program starts after the answer.
    StartContainer(Box<(PodSandbox, Container)>),
    /// The program of a container has ended, or is about to be ended.
    StopContainer(Box<(PodSandbox, Container)>),
    /// A container does not exist any more.
    RemoveContainer(Box<(PodSandbox, Container)>),
    /// The runtime ends the connection.
    Shutdown,
}

/// Methods of events: name, number, and how to make the event.
const METHODS: [(&str, i32); 6] = [
    ("RunPodSandbox", 1),
    ("RemovePodSandbox", 3),
    ("CreateContainer", 4),
    ("StartContainer", 6),
    ("StopContainer", 10),
    ("RemoveContainer", 11),
];

/// Answer to an event. For an event that does not wait, every answer is the same.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Go on.
    Accept,
    /// Go on with a changed container; only for [`Event::CreateContainer`].
    Adjust(Box<ContainerAdjustment>),
    /// Do not create or start the container, for this reason.
    Refuse(String),
}

/// The runtime does not follow the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// Bytes that are no messages.
    #[error("cannot read from the runtime: {0}")]
    Frame(#[from] FrameError),
    /// A message that cannot be decoded.
    #[error("cannot decode a message of the runtime: {0}")]
    Decode(#[from] prost::DecodeError),
    /// The runtime refuses the plug-in.
    #[error("the runtime refuses the plug-in: {0}")]
    Refused(String),
    /// The runtime lists more than it can have.
    #[error("the runtime lists more than {MAX_LISTED} pods and containers")]
    TooMany,
}

/// What is to be done about a message.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing.
    Nothing,
    /// The runtime has accepted the plug-in.
    Registered,
    /// Send these bytes.
    Send(Vec<u8>),
    /// Answer the event with [`Protocol::answer`].
    Deliver {
        /// Stream of the request.
        stream: u32,
        /// The event.
        event: Box<Event>,
    },
}

/// The state of a connection.
#[derive(Debug)]
pub struct Protocol {
    options: Options,
    /// What the runtime has listed so far, until the last part.
    pods: Vec<PodSandbox>,
    containers: Vec<Container>,
}

impl Protocol {
    /// A connection on which nothing was sent.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            pods: Vec::new(),
            containers: Vec::new(),
        }
    }

    /// The registration, to be sent first.
    ///
    /// # Errors
    ///
    /// If the name is too long for a message.
    pub fn register(&self) -> Result<Vec<u8>, FrameError> {
        let register = RegisterPluginRequest {
            plugin_name: self.options.name.clone(),
            plugin_idx: format!("{:02}", self.options.index.min(99)),
            nri_version: NRI_VERSION.to_owned(),
        };
        let request = Request {
            service: RUNTIME_SERVICE.to_owned(),
            method: "RegisterPlugin".to_owned(),
            payload: register.encode_to_vec(),
            timeout_nano: 0,
        };
        encode(&Message {
            connection: RUNTIME_CONNECTION,
            stream: REGISTRATION,
            kind: MessageKind::Request,
            payload: request.encode_to_vec(),
        })
    }

    /// Takes a message of the runtime.
    ///
    /// # Errors
    ///
    /// If the runtime does not follow the protocol. The connection is then of no more use.
    pub fn receive(&mut self, message: &Message) -> Result<Step, ProtocolError> {
        match (message.connection, message.kind) {
            (PLUGIN_CONNECTION, MessageKind::Request) => self.call(message),
            (RUNTIME_CONNECTION, MessageKind::Response) if message.stream == REGISTRATION => {
                let status = Response::decode(&*message.payload)?
                    .status
                    .unwrap_or_default();
                match status.code {
                    0 => Ok(Step::Registered),
                    _ => Err(ProtocolError::Refused(status.message)),
                }
            }
            // Nothing else was asked, and nobody can ask here.
            _ => Ok(Step::Nothing),
        }
    }

    fn call(&mut self, message: &Message) -> Result<Step, ProtocolError> {
        let stream = message.stream;
        let request = Request::decode(&*message.payload)?;
        if request.service != PLUGIN_SERVICE {
            let text = format!("there is no service `{}`", request.service);
            return Ok(Step::Send(error(stream, UNIMPLEMENTED, &text)?));
        }
        match request.method.as_str() {
            "Configure" => {
                ConfigureRequest::decode(&*request.payload)?;
                let events = METHODS
                    .iter()
                    .fold(0, |bits, (_, number)| bits | 1 << (number - 1));
                Ok(Step::Send(response(stream, &ConfigureResponse { events })?))
            }
            "Synchronize" => {
                self.synchronize(stream, SynchronizeRequest::decode(&*request.payload)?)
            }
            "Shutdown" => Ok(Step::Deliver {
                stream,
                event: Box::new(Event::Shutdown),
            }),
            "StateChange" => {
                let change = StateChangeEvent::decode(&*request.payload)?;
                let event = event(change.event, change.pod, change.container);
                event.map_or_else(
                    // An event that was not asked for.
                    || Ok(Step::Send(response(stream, &Empty {})?)),
                    |event| Ok(Step::Deliver { stream, event }),
                )
            }
            method => {
                let known = METHODS.iter().find(|(name, _)| *name == method);
                let Some((_, number)) = known else {
                    let text = format!("there is no method `{method}`");
                    return Ok(Step::Send(error(stream, UNIMPLEMENTED, &text)?));
                };
                let about = EventRequest::decode(&*request.payload)?;
                match event(*number, about.pod, about.container) {
                    Some(event) => Ok(Step::Deliver { stream, event }),
                    None => {
                        let text = format!("`{method}` without a pod or a container");
                        Ok(Step::Send(error(stream, INVALID_ARGUMENT, &text)?))
                    }
                }
            }
        }
    }

    fn synchronize(
        &mut self,
        stream: u32,
        part: SynchronizeRequest,
    ) -> Result<Step, ProtocolError> {
        self.pods.extend(part.pods);
        self.containers.extend(part.containers);
        if self.pods.len() + self.containers.len() > MAX_LISTED {
            return Err(ProtocolError::TooMany);
        }
        if part.more {
            let more = SynchronizeResponse { more: true };
            return Ok(Step::Send(response(stream, &more)?));
        }
        Ok(Step::Deliver {
            stream,
            event: Box::new(Event::Synchronize {
                pods: std::mem::take(&mut self.pods),
                containers: std::mem::take(&mut self.containers),
            }),
        })
    }

    /// The bytes of an answer to an event.
    ///
    /// # Errors
    ///
    /// If the answer is too long.
    pub fn answer(
        &self,
        stream: u32,
        event: &Event,
        answer: &Answer,
    ) -> Result<Vec<u8>, FrameError> {
        match (event, answer) {
            (_, Answer::Refuse(reason)) => error(stream, UNKNOWN, reason),
            (Event::CreateContainer(_), Answer::Adjust(adjust)) => {
                let adjust = Some((**adjust).clone());
                response(stream, &CreateContainerResponse { adjust })
            }
            // Messages without fields are the same bytes.
            _ => response(stream, &Empty {}),
        }
    }
}

/// An event by its number; `None` if it is none of [`METHODS`], or lacks its pod or container.
fn event(number: i32, pod: Option<PodSandbox>, container: Option<Container>) -> Option<Box<Event>> {
    let pod = pod?;
    let event = match number {
        1 => Some(Event::RunPod(pod)),
        3 => Some(Event::RemovePod(pod)),
        4 => Some(Event::CreateContainer(Box::new((pod, container?)))),
        6 => Some(Event::StartContainer(Box::new((pod, container?)))),
        10 => Some(Event::StopContainer(Box::new((pod, container?)))),
        11 => Some(Event::RemoveContainer(Box::new((pod, container?)))),
        _ => None,
    };
    event.map(Box::new)
}

fn response(stream: u32, payload: &impl prost::Message) -> Result<Vec<u8>, FrameError> {
    respond(
        stream,
        &Response {
            status: None,
            payload: payload.encode_to_vec(),
        },
    )
}

fn error(stream: u32, code: i32, text: &str) -> Result<Vec<u8>, FrameError> {
    let status = Status {
        code,
        message: text.to_owned(),
    };
    respond(
        stream,
        &Response {
            status: Some(status),
            payload: Vec::new(),
        },
    )
}

fn respond(stream: u32, response: &Response) -> Result<Vec<u8>, FrameError> {
    encode(&Message {
        connection: PLUGIN_CONNECTION,
        stream,
        kind: MessageKind::Response,
        payload: response.encode_to_vec(),
    })
}
