//! Keys of a configuration as rows of a table: a path, a type, and the place of the value.

use std::path::PathBuf;

use crate::settings::{Node, Problem};

/// One setting of `T`.
///
/// ```
/// use yaml::key::Key;
///
/// #[derive(Default)]
/// struct Server {
///     port: u64,
/// }
/// const KEYS: &[Key<Server>] = &[Key::integer("server.port", |server| &mut server.port)];
///
/// let mut server = Server::default();
/// let node = yaml::settings::read("f.yaml", "80").expect("it is YAML");
/// KEYS[0].set(&mut server, &node).expect("it is a number");
/// assert_eq!((server.port, KEYS[0].json_type()), (80, "integer"));
/// ```
pub struct Key<T: 'static> {
    /// Its path from the top of the configuration, with dots between the names.
    pub path: &'static str,
    kind: Kind<T>,
}

/// What a setting takes, and where that is kept.
enum Kind<T: 'static> {
    Boolean(fn(&mut T) -> &mut bool),
    Integer(fn(&mut T) -> &mut u64),
    Number(fn(&mut T) -> &mut f64),
    Text(fn(&mut T) -> &mut String),
    File(fn(&mut T) -> &mut PathBuf),
    Texts(fn(&mut T) -> &mut Vec<String>),
    TextsByName(fn(&mut T) -> &mut Vec<(String, String)>),
    /// What needs more than to be read, and the JSON type of what it takes.
    Other(&'static str, fn(&mut T, &Node) -> Result<(), Problem>),
}

impl<T> Key<T> {
    /// A setting that is true or false.
    pub const fn boolean(path: &'static str, place: fn(&mut T) -> &mut bool) -> Self {
        let kind = Kind::Boolean(place);
        Self { path, kind }
    }

    /// A whole number from 0 on.
    pub const fn integer(path: &'static str, place: fn(&mut T) -> &mut u64) -> Self {
        let kind = Kind::Integer(place);
        Self { path, kind }
    }

    /// A finite number from 0 on.
    pub const fn number(path: &'static str, place: fn(&mut T) -> &mut f64) -> Self {
        let kind = Kind::Number(place);
        Self { path, kind }
    }

    /// A text.
    pub const fn text(path: &'static str, place: fn(&mut T) -> &mut String) -> Self {
        let kind = Kind::Text(place);
        Self { path, kind }
    }

    /// The path of a file or folder.
    pub const fn file(path: &'static str, place: fn(&mut T) -> &mut PathBuf) -> Self {
        let kind = Kind::File(place);
        Self { path, kind }
    }

    /// A list of texts; a text alone counts as a list of one.
    pub const fn texts(path: &'static str, place: fn(&mut T) -> &mut Vec<String>) -> Self {
        let kind = Kind::Texts(place);
        Self { path, kind }
    }

    /// A group of texts with names that the user chooses.
    pub const fn texts_by_name(
        path: &'static str,
        place: fn(&mut T) -> &mut Vec<(String, String)>,
    ) -> Self {
        let kind = Kind::TextsByName(place);
        Self { path, kind }
    }

    /// A setting that `set` checks and keeps; `json_type` is the JSON type of what it takes.
    pub const fn other(
        path: &'static str,
        json_type: &'static str,
        set: fn(&mut T, &Node) -> Result<(), Problem>,
    ) -> Self {
        let kind = Kind::Other(json_type, set);
        Self { path, kind }
    }

    /// Puts a value into the configuration.
    ///
    /// # Errors
    ///
    /// If the value is not one of this setting. Then nothing has changed.
    pub fn set(&self, target: &mut T, node: &Node) -> Result<(), Problem> {
        match self.kind {
            Kind::Boolean(place) => *place(target) = node.boolean()?,
            Kind::Integer(place) => *place(target) = node.integer()?,
            Kind::Number(place) => *place(target) = node.number()?,
            Kind::Text(place) => node.text()?.clone_into(place(target)),
            Kind::File(place) => *place(target) = PathBuf::from(node.text()?),
            Kind::Texts(place) => *place(target) = node.texts()?,
            Kind::TextsByName(place) => *place(target) = node.texts_by_name()?,
            Kind::Other(_, set) => set(target, node)?,
        }
        Ok(())
    }

    /// The JSON type of what it takes.
    pub fn json_type(&self) -> &'static str {
        match self.kind {
            Kind::Boolean(_) => "boolean",
            Kind::Integer(_) => "integer",
            Kind::Number(_) => "number",
            Kind::Text(_) | Kind::File(_) => "string",
            Kind::Texts(_) => "array",
            Kind::TextsByName(_) => "object",
            Kind::Other(json_type, _) => json_type,
        }
    }
}
