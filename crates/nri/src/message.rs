//! Messages of protobuf, version `v1alpha1` of NRI. Fields that tollgate does not read are left out; they are skipped.

use std::collections::HashMap;

/// Service that the plug-in offers.
pub const PLUGIN_SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";
/// Service that the runtime offers.
pub const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";

/// Declares messages. A field has its type in Rust, and its type and number in protobuf as prost names them.
macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $shape:ty = ($($proto:tt)*),)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, PartialEq, prost::Message)]
            pub struct $name {
                $($(#[$field_doc])* #[prost($($proto)*)] pub $field: $shape,)*
            }
        )*
    };
}

messages! {
    /// A request of ttRPC.
    Request {
        /// Service.
        service: String = (string, tag = "1"),
        /// Method.
        method: String = (string, tag = "2"),
        /// Message of the method.
        payload: Vec<u8> = (bytes = "vec", tag = "3"),
        /// Nanoseconds after which the caller no longer waits; 0 for no limit.
        timeout_nano: i64 = (int64, tag = "4"),
    }
    /// A response of ttRPC.
    Response {
        /// The error; absent or with code 0 for success.
        status: Option<Status> = (message, optional, tag = "1"),
        /// Message of the method.
        payload: Vec<u8> = (bytes = "vec", tag = "2"),
    }
    /// An error.
    Status {
        /// Code of gRPC.
        code: i32 = (int32, tag = "1"),
        /// Text for people.
        message: String = (string, tag = "2"),
    }
    /// Registers a plug-in.
    RegisterPluginRequest {
        /// Name.
        plugin_name: String = (string, tag = "1"),
        /// Two digits: plug-ins are called in the order of these.
        plugin_idx: String = (string, tag = "2"),
        /// Version of NRI that the plug-in was made for.
        nri_version: String = (string, tag = "3"),
    }
    /// Configures a plug-in.
    ConfigureRequest {
        /// Configuration of the plug-in, from a file of the runtime.
        config: String = (string, tag = "1"),
        /// Name of the runtime.
        runtime_name: String = (string, tag = "2"),
        /// Version of the runtime.
        runtime_version: String = (string, tag = "3"),
        /// Milliseconds that a registration may take.
        registration_timeout: i64 = (int64, tag = "4"),
        /// Milliseconds that an answer may take.
        request_timeout: i64 = (int64, tag = "5"),
    }
    /// Answer to [`ConfigureRequest`].
    ConfigureResponse {
        /// Events that the plug-in wants: bit 0 for the event number 1.
        events: i32 = (int32, tag = "2"),
    }
    /// All pods and containers that there are, or a part of them.
    SynchronizeRequest {
        /// Pods.
        pods: Vec<PodSandbox> = (message, repeated, tag = "1"),
        /// Containers.
        containers: Vec<Container> = (message, repeated, tag = "2"),
        /// More parts follow.
        more: bool = (bool, tag = "3"),
    }
    /// Answer to [`SynchronizeRequest`].
    SynchronizeResponse {
        /// The plug-in waits for more parts.
        more: bool = (bool, tag = "2"),
    }
    /// Request of every event: a pod, and a container if it is about one.
    EventRequest {
        /// The pod.
        pod: Option<PodSandbox> = (message, optional, tag = "1"),
        /// The container.
        container: Option<Container> = (message, optional, tag = "2"),
    }
    /// Event of runtimes that have no method for it.
    StateChangeEvent {
        /// Number of the event.
        event: i32 = (int32, tag = "1"),
        /// The pod.
        pod: Option<PodSandbox> = (message, optional, tag = "2"),
        /// The container.
        container: Option<Container> = (message, optional, tag = "3"),
    }
    /// Answer to `CreateContainer`.
    CreateContainerResponse {
        /// What to change in the container.
        adjust: Option<ContainerAdjustment> = (message, optional, tag = "1"),
    }
    /// A message without fields.
    Empty {}
    /// A pod.
    PodSandbox {
        /// Id at the runtime.
        id: String = (string, tag = "1"),
        /// Name in Kubernetes.
        name: String = (string, tag = "2"),
        /// Unique id in Kubernetes.
        uid: String = (string, tag = "3"),
        /// Namespace in Kubernetes.
        namespace: String = (string, tag = "4"),
        /// Labels.
        labels: HashMap<String, String> = (map = "string, string", tag = "5"),
        /// Annotations.
        annotations: HashMap<String, String> = (map = "string, string", tag = "6"),
        /// Handler of its RuntimeClass.
        runtime_handler: String = (string, tag = "7"),
        /// What only Linux has.
        linux: Option<LinuxPodSandbox> = (message, optional, tag = "8"),
        /// Addresses; runtimes before containerd 2.1 say none.
        ips: Vec<String> = (string, repeated, tag = "10"),
    }
    /// What only Linux has of a pod.
    LinuxPodSandbox {
        /// Control group of the pod.
        cgroup_parent: String = (string, tag = "3"),
    }
    /// A container.
    Container {
        /// Id at the runtime.
        id: String = (string, tag = "1"),
        /// Id of its pod.
        pod_sandbox_id: String = (string, tag = "2"),
        /// Name in the pod.
        name: String = (string, tag = "3"),
        /// State: 1 created, 2 paused, 3 running, 4 stopped.
        state: i32 = (int32, tag = "4"),
        /// Labels.
        labels: HashMap<String, String> = (map = "string, string", tag = "5"),
        /// Annotations.
        annotations: HashMap<String, String> = (map = "string, string", tag = "6"),
        /// Command line.
        args: Vec<String> = (string, repeated, tag = "7"),
        /// What only Linux has.
        linux: Option<LinuxContainer> = (message, optional, tag = "11"),
        /// Pid of the first process; 0 before there is one.
        pid: u32 = (uint32, tag = "12"),
        /// Image; runtimes before containerd 2.4 say none.
        image: Option<Image> = (message, optional, tag = "22"),
    }
    /// What only Linux has of a container.
    LinuxContainer {
        /// Namespaces.
        namespaces: Vec<LinuxNamespace> = (message, repeated, tag = "1"),
        /// Control group: a path, or `SLICE:PREFIX:NAME` with systemd.
        cgroups_path: String = (string, tag = "5"),
        /// Kind of seccomp profile that Kubernetes asked for.
        seccomp_profile: Option<SecurityProfile> = (message, optional, tag = "7"),
        /// The seccomp policy; absent for a container without a filter.
        seccomp_policy: Option<LinuxSeccomp> = (message, optional, tag = "8"),
    }
    /// A namespace of a container.
    LinuxNamespace {
        /// Kind.
        kind: String = (string, tag = "1"),
        /// Path of an existing one; empty for a new one.
        path: String = (string, tag = "2"),
    }
    /// A seccomp profile of a container.
    SecurityProfile {
        /// 0 default of the runtime, 1 unconfined, 2 a file.
        profile_type: i32 = (int32, tag = "1"),
        /// The file.
        localhost_ref: String = (string, tag = "2"),
    }
    /// Image of a container.
    Image {
        /// Name.
        name: String = (string, tag = "1"),
        /// Digest.
        digest: String = (string, tag = "2"),
    }
    /// What to change in a container before it is created.
    ContainerAdjustment {
        /// Annotations to add.
        annotations: HashMap<String, String> = (map = "string, string", tag = "2"),
        /// Linux parts.
        linux: Option<LinuxContainerAdjustment> = (message, optional, tag = "6"),
    }
    /// What to change in the Linux parts of a container.
    LinuxContainerAdjustment {
        /// Seccomp policy, in place of the container's; runtimes before containerd 2.2 ignore it.
        seccomp_policy: Option<LinuxSeccomp> = (message, optional, tag = "6"),
    }
    /// A seccomp policy as the OCI runtime specification has it.
    LinuxSeccomp {
        /// Action for calls without a rule.
        default_action: String = (string, tag = "1"),
        /// Error number of the default action.
        default_errno: Option<OptionalUInt32> = (message, optional, tag = "2"),
        /// Architectures.
        architectures: Vec<String> = (string, repeated, tag = "3"),
        /// Flags of the filter.
        flags: Vec<String> = (string, repeated, tag = "4"),
        /// Socket that gets the listener.
        listener_path: String = (string, tag = "5"),
        /// Text for the program behind that socket.
        listener_metadata: String = (string, tag = "6"),
        /// Rules.
        syscalls: Vec<LinuxSyscall> = (message, repeated, tag = "7"),
    }
    /// A rule of a seccomp policy.
    LinuxSyscall {
        /// Names of system calls.
        names: Vec<String> = (string, repeated, tag = "1"),
        /// Action.
        action: String = (string, tag = "2"),
        /// Error number of the action.
        errno_ret: Option<OptionalUInt32> = (message, optional, tag = "3"),
        /// Conditions on arguments.
        args: Vec<LinuxSeccompArg> = (message, repeated, tag = "4"),
    }
    /// A condition on an argument.
    LinuxSeccompArg {
        /// Number of the argument.
        index: u32 = (uint32, tag = "1"),
        /// Value.
        value: u64 = (uint64, tag = "2"),
        /// Second value.
        value_two: u64 = (uint64, tag = "3"),
        /// Comparison.
        op: String = (string, tag = "4"),
    }
    /// A number that may be absent.
    OptionalUInt32 {
        /// The number.
        value: u32 = (uint32, tag = "1"),
    }
}
