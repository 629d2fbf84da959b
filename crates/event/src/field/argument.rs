//! Arguments of fields.

use std::sync::Arc;

use super::FieldSpec;
use crate::{EventKind, ParamType, suggest};

/// Syntax of the argument after a field's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentKind {
    /// No argument.
    None,
    /// `[N]`.
    Index {
        /// Whether the argument is mandatory.
        required: bool,
    },
    /// `[NAME]`.
    Name {
        /// Whether the argument is mandatory.
        required: bool,
    },
    /// `[N]` or `[NAME]`.
    IndexOrName {
        /// Whether the argument is mandatory.
        required: bool,
    },
    /// `.NAME`.
    Suffix {
        /// Whether the argument is mandatory.
        required: bool,
        /// Accepted names; empty if any name is accepted.
        names: &'static [&'static str],
    },
    /// `.NAME` or `[NAME]`, with any name; mandatory.
    Label,
    /// `.NAME` or `[N]` of an event parameter; mandatory.
    Param,
}

/// A validated argument.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Argument {
    /// No argument.
    None,
    /// A number.
    Index(u32),
    /// A name.
    Name(Arc<str>),
    /// The name of an event parameter.
    Param(ParamName),
}

/// Name of an event parameter, with its position in every kind of event.
#[derive(Clone, Debug)]
pub struct ParamName {
    name: &'static str,
    ty: ParamType,
    /// Positions by [`EventKind::index`]; [`NOWHERE`] if the kind has no such parameter.
    positions: Arc<[u8]>,
}

const NOWHERE: u8 = u8::MAX;

impl PartialEq for ParamName {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for ParamName {}

impl std::hash::Hash for ParamName {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl ParamName {
    fn find(name: &str) -> Option<Self> {
        let first = EventKind::all()
            .find_map(|kind| kind.spec().params.iter().find(|param| param.name == name))?;
        let positions = EventKind::all()
            .map(|kind| {
                kind.param_index(name)
                    .map_or(Some(NOWHERE), |at| u8::try_from(at).ok())
            })
            .map(|at| at.expect("a kind has fewer than 255 parameters"))
            .collect();
        Some(Self {
            name: first.name,
            ty: first.ty,
            positions,
        })
    }

    /// Returns the name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the type of the first parameter of this name in the event table.
    pub fn ty(&self) -> ParamType {
        self.ty
    }
}

impl Argument {
    /// Returns the position in `kind` of the parameter that the argument names.
    pub(super) fn param_index(&self, kind: EventKind) -> Option<usize> {
        let at = match self {
            Self::Param(param) => match param.positions[kind.index()] {
                NOWHERE => return None,
                at => usize::from(at),
            },
            Self::Index(index) => usize::try_from(*index).ok()?,
            Self::None | Self::Name(_) => return None,
        };
        (at < kind.spec().params.len()).then_some(at)
    }

    /// Returns the index, if the argument is one.
    pub(super) fn index(&self) -> Option<u32> {
        match self {
            Self::Index(index) => Some(*index),
            _ => None,
        }
    }

    /// Returns the name, if the argument is one.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::Name(name) => Some(name),
            _ => None,
        }
    }
}

/// Error of parsing a field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// The field does not exist.
    #[error("cannot find a field named `{name}`{}", suggest::hint(.suggestion.as_deref()))]
    Unknown {
        /// Name that was not found.
        name: String,
        /// Nearest existing name.
        suggestion: Option<String>,
    },
    /// The argument is missing.
    #[error("cannot use `{field}` without an argument; write {expected}")]
    Missing {
        /// Name of the field.
        field: &'static str,
        /// Syntax of the field with its argument.
        expected: String,
    },
    /// The field takes no argument.
    #[error("`{field}` takes no argument")]
    Unexpected {
        /// Name of the field.
        field: &'static str,
    },
    /// The argument is not a number.
    #[error("cannot read the index `{argument}` of `{field}`: it must be a whole number from 0")]
    BadIndex {
        /// Name of the field.
        field: &'static str,
        /// The argument.
        argument: String,
        /// Parse error.
        source: std::num::ParseIntError,
    },
    /// No event has a parameter of this name, or the field has no such part.
    #[error(
        "cannot find a part named `{argument}` of `{field}`{}",
        suggest::hint(.suggestion.as_deref())
    )]
    UnknownPart {
        /// Name of the field.
        field: &'static str,
        /// The argument.
        argument: String,
        /// Nearest existing name.
        suggestion: Option<String>,
    },
    /// The closing bracket is missing.
    #[error("cannot read `{field}`: the `]` at its end is missing")]
    Unclosed {
        /// Text of the field.
        field: String,
    },
}

/// Validates the argument of a field: `suffix` after a dot, `bracket` in brackets.
pub(super) fn resolve(
    spec: &'static FieldSpec,
    suffix: Option<&str>,
    bracket: Option<&str>,
) -> Result<Argument, FieldError> {
    let missing = |expected: String| FieldError::Missing {
        field: spec.name,
        expected,
    };
    let given = match (suffix, bracket) {
        (Some(_), Some(_)) => return Err(FieldError::Unexpected { field: spec.name }),
        (given, None) | (None, given) => given.filter(|text| !text.is_empty()),
    };
    let by_dot = suffix.is_some();
    match (spec.argument, given) {
        (ArgumentKind::None, None) if bracket.is_none() => Ok(Argument::None),
        (ArgumentKind::None, _) => Err(FieldError::Unexpected { field: spec.name }),
        (ArgumentKind::Index { required: true }, None) => {
            Err(missing(format!("`{}[0]`", spec.name)))
        }
        (
            ArgumentKind::Name { required: true } | ArgumentKind::IndexOrName { required: true },
            None,
        ) => Err(missing(format!("`{}[NAME]`", spec.name))),
        (
            ArgumentKind::Suffix { required: true, .. } | ArgumentKind::Label | ArgumentKind::Param,
            None,
        ) => Err(missing(format!("`{}.NAME`", spec.name))),
        (_, None) => Ok(Argument::None),
        (ArgumentKind::Index { .. }, Some(text)) => index(spec, text),
        (ArgumentKind::Name { .. } | ArgumentKind::Label, Some(text)) => {
            Ok(Argument::Name(unquoted(text).into()))
        }
        (ArgumentKind::IndexOrName { .. }, Some(text)) => {
            Ok(index(spec, text).unwrap_or_else(|_| Argument::Name(unquoted(text).into())))
        }
        (ArgumentKind::Suffix { names, .. }, Some(text)) => part(spec, names, text, by_dot),
        (ArgumentKind::Param, Some(text)) if by_dot => param(spec, text),
        (ArgumentKind::Param, Some(text)) => index(spec, text),
    }
}

fn index(spec: &'static FieldSpec, text: &str) -> Result<Argument, FieldError> {
    text.parse()
        .map(Argument::Index)
        .map_err(|source| FieldError::BadIndex {
            field: spec.name,
            argument: text.to_owned(),
            source,
        })
}

fn unquoted(text: &str) -> &str {
    text.strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
        .unwrap_or(text)
}

fn part(
    spec: &'static FieldSpec,
    names: &[&str],
    text: &str,
    by_dot: bool,
) -> Result<Argument, FieldError> {
    if !by_dot {
        return Err(FieldError::Missing {
            field: spec.name,
            expected: format!("`{}.NAME`", spec.name),
        });
    }
    if names.is_empty() || names.contains(&text) {
        return Ok(Argument::Name(text.into()));
    }
    Err(FieldError::UnknownPart {
        field: spec.name,
        argument: text.to_owned(),
        suggestion: suggest::nearest(text, names.iter().copied()).map(str::to_owned),
    })
}

fn param(spec: &'static FieldSpec, text: &str) -> Result<Argument, FieldError> {
    ParamName::find(text).map(Argument::Param).ok_or_else(|| {
        let names = EventKind::all()
            .flat_map(|kind| kind.spec().params)
            .map(|param| param.name);
        FieldError::UnknownPart {
            field: spec.name,
            argument: text.to_owned(),
            suggestion: suggest::nearest(text, names).map(str::to_owned),
        }
    })
}
