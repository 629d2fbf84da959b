//! Configuration keys as table rows: a path, a type, and the field that holds the value.

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
    /// Path from the top of the configuration, with dots between the names.
    pub path: &'static str,
    kind: Kind<T>,
}

/// Type of a setting and accessor of its field.
enum Kind<T: 'static> {
    Boolean(fn(&mut T) -> &mut bool),
    Integer(fn(&mut T) -> &mut u64),
    Number(fn(&mut T) -> &mut f64),
    Text(fn(&mut T) -> &mut String),
    File(fn(&mut T) -> &mut PathBuf),
    Texts(fn(&mut T) -> &mut Vec<String>),
    TextsByName(fn(&mut T) -> &mut Vec<(String, String)>),
    /// A setting with its own check: the JSON type, and a function that validates and stores the value.
    Other(&'static str, fn(&mut T, &Node) -> Result<(), Problem>),
}

impl<T> Key<T> {
    /// Creates a boolean setting.
    pub const fn boolean(path: &'static str, place: fn(&mut T) -> &mut bool) -> Self {
        let kind = Kind::Boolean(place);
        Self { path, kind }
    }

    /// Creates a setting that is a whole number of at least 0.
    pub const fn integer(path: &'static str, place: fn(&mut T) -> &mut u64) -> Self {
        let kind = Kind::Integer(place);
        Self { path, kind }
    }

    /// Creates a setting that is a finite number of at least 0.
    pub const fn number(path: &'static str, place: fn(&mut T) -> &mut f64) -> Self {
        let kind = Kind::Number(place);
        Self { path, kind }
    }

    /// Creates a text setting.
    pub const fn text(path: &'static str, place: fn(&mut T) -> &mut String) -> Self {
        let kind = Kind::Text(place);
        Self { path, kind }
    }

    /// Creates a setting that is the path of a file or directory.
    pub const fn file(path: &'static str, place: fn(&mut T) -> &mut PathBuf) -> Self {
        let kind = Kind::File(place);
        Self { path, kind }
    }

    /// Creates a setting that is a list of texts; a single text counts as a list of one.
    pub const fn texts(path: &'static str, place: fn(&mut T) -> &mut Vec<String>) -> Self {
        let kind = Kind::Texts(place);
        Self { path, kind }
    }

    /// Creates a setting that is a group of texts under names that the user chooses.
    pub const fn texts_by_name(
        path: &'static str,
        place: fn(&mut T) -> &mut Vec<(String, String)>,
    ) -> Self {
        let kind = Kind::TextsByName(place);
        Self { path, kind }
    }

    /// Creates a setting that `set` validates and stores; `json_type` is the JSON type of its value.
    pub const fn other(
        path: &'static str,
        json_type: &'static str,
        set: fn(&mut T, &Node) -> Result<(), Problem>,
    ) -> Self {
        let kind = Kind::Other(json_type, set);
        Self { path, kind }
    }

    /// Stores the value of `node` in `target`.
    ///
    /// # Errors
    ///
    /// Fails, and changes nothing, if the value is invalid for this setting.
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

    /// Returns the JSON type of the setting's value.
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
