//! Agents that a client certificate names.

use std::fmt;

use crate::model::TokenId;

/// Name of an agent that a client certificate has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CertificateName {
    /// Class of the agent.
    pub class: String,
    /// Name of the agent in its class.
    pub name: String,
}

impl fmt::Display for CertificateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.class, self.name)
    }
}

/// The token of a certificate's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CertificateToken {
    pub(crate) id: TokenId,
    pub(crate) is_revoked: bool,
}

impl CertificateToken {
    /// Returns its number, `None` if it is revoked.
    pub(crate) fn in_force(self) -> Option<TokenId> {
        (!self.is_revoked).then_some(self.id)
    }
}
