//! Diagnostics on response files.

use yaml::Severity;

/// One diagnostic on a response file.
pub type Diagnostic = yaml::Diagnostic<Code>;

/// Declares the codes, each with name, severity and title.
macro_rules! codes {
    ($($variant:ident $severity:ident $name:literal $title:literal)*) => {
        /// Code of a diagnostic.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code { $(#[doc = $title] $variant,)* }

        impl yaml::Code for Code {
            fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            fn severity(self) -> Severity {
                match self { $(Self::$variant => Severity::$severity,)* }
            }
        }
    };
}

codes! {
    FileRead Error "RESPONSE_FILE_READ" "The file cannot be read, or must not be trusted"
    YamlParse Error "RESPONSE_YAML_PARSE" "The file is not YAML"
    Shape Error "RESPONSE_SHAPE" "A value has the wrong type, or a key is missing or twice"
    UnknownKey Error "RESPONSE_UNKNOWN_KEY" "A key that means nothing here"
    UnknownValue Error "RESPONSE_UNKNOWN_VALUE" "An unknown word or number"
    UnknownAction Error "RESPONSE_UNKNOWN_ACTION" "No action of this name has an actionner"
    UnknownActionner Error "RESPONSE_UNKNOWN_ACTIONNER" "There is no such actionner"
    Unavailable Error "RESPONSE_UNAVAILABLE" "An actionner of Falco Talon that does not exist on a host"
    Accepted Warning "RESPONSE_ACCEPTED" "The action is left out, which was accepted by the name of its actionner"
    NoNotifier Warning "RESPONSE_NO_NOTIFIER" "Notifiers have no effect"
    MatchesAll Warning "RESPONSE_MATCHES_ALL" "The rule matches every alert"
    UnknownRule Warning "RESPONSE_UNKNOWN_RULE" "No loaded rule has this name"
}
