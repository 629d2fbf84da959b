//! The parts of Kubernetes' own kinds that egress rules and coverage depend on.

use serde::{Deserialize, Serialize};

use crate::meta::Meta;

/// Declares structs that are read from objects, with absent fields empty.
macro_rules! parts {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $shape:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
            #[serde(rename_all = "camelCase", default)]
            pub struct $name {
                $($(#[$field_doc])* pub $field: $shape,)*
            }
        )*
    };
}

parts! {
    /// A Service.
    Service {
        /// Name, namespace and labels.
        metadata: Meta,
        /// Addresses and ports.
        spec: ServiceSpec,
        /// Addresses of load balancers.
        status: ServiceStatus,
    }
    /// Spec of a Service.
    ServiceSpec {
        /// Addresses inside of the cluster; `None` as a text for a Service without one.
        #[serde(rename = "clusterIPs")]
        cluster_ips: Vec<String>,
        /// Addresses that nodes accept for the Service.
        #[serde(rename = "externalIPs")]
        external_ips: Vec<String>,
        /// Ports.
        ports: Vec<ServicePort>,
    }
    /// A port of a Service.
    ServicePort {
        /// The port.
        port: u16,
    }
    /// Status of a Service.
    ServiceStatus {
        /// The load balancer.
        load_balancer: LoadBalancer,
    }
    /// A load balancer.
    LoadBalancer {
        /// Its addresses.
        ingress: Vec<Ingress>,
    }
    /// An address of a load balancer.
    Ingress {
        /// The address; empty if it has only a name.
        ip: String,
    }
    /// An EndpointSlice: addresses behind a Service.
    EndpointSlice {
        /// Namespace, and the label [`EndpointSlice::SERVICE`].
        metadata: Meta,
        /// Addresses.
        endpoints: Vec<Endpoint>,
        /// Ports; without any, all.
        ports: Vec<EndpointPort>,
    }
    /// An address behind a Service.
    Endpoint {
        /// Addresses.
        addresses: Vec<String>,
    }
    /// A port behind a Service.
    EndpointPort {
        /// The port; `None` means all.
        port: Option<u16>,
    }
    /// A Pod.
    Pod {
        /// Name, namespace and labels.
        metadata: Meta,
        /// Whether the Pod has the network of its node.
        spec: PodSpec,
        /// Addresses.
        status: PodStatus,
    }
    /// Spec of a Pod.
    PodSpec {
        /// The Pod has the network, and so the addresses, of its node.
        host_network: bool,
    }
    /// Status of a Pod.
    PodStatus {
        /// Pending, Running, Succeeded, Failed or Unknown.
        phase: String,
        /// Addresses.
        #[serde(rename = "podIPs")]
        pod_ips: Vec<PodIp>,
    }
    /// An address of a Pod.
    PodIp {
        /// The address.
        ip: String,
    }
    /// A Node.
    Node {
        /// Name and labels.
        metadata: Meta,
        /// What the kubelet reports.
        status: NodeStatus,
    }
    /// Status of a Node.
    NodeStatus {
        /// About the system.
        node_info: NodeInfo,
    }
    /// The system of a Node.
    NodeInfo {
        /// Id of the current boot, from the kernel.
        #[serde(rename = "bootID")]
        boot_id: String,
    }
}

impl EndpointSlice {
    /// Label with the name of the Service.
    pub const SERVICE: &'static str = "kubernetes.io/service-name";
}
