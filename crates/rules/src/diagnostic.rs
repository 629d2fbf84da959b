//! Diagnostic codes of rule files.

use std::fmt;

pub use yaml::{Location, Severity, closest};

/// One error or warning about one rule file.
pub type Diagnostic = yaml::Diagnostic<Code>;

/// Declares the codes: name, severity, title, description.
macro_rules! codes {
    ($($variant:ident $severity:ident $name:literal $title:literal $description:literal)*) => {
        /// Diagnostic code. Names are Falco's, so that scripts which search for them keep working.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code { $(#[doc = $title] $variant,)* }

        impl Code {
            /// All codes, errors first.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the stable name, e.g. `LOAD_ERR_VALIDATE`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Returns the severity of diagnostics with this code.
            #[must_use]
            pub fn severity(self) -> Severity {
                match self { $(Self::$variant => Severity::$severity,)* }
            }

            /// Returns a one-line title.
            #[must_use]
            pub fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)* }
            }

            /// Returns a description: when the diagnostic occurs and how to fix it.
            #[must_use]
            pub fn description(self) -> &'static str {
                match self { $(Self::$variant => $description,)* }
            }
        }
    };
}

codes! {
    FileRead Error "LOAD_ERR_FILE_READ"
        "A rule file cannot be read"
        "The file is missing, a directory, not readable by this user or not UTF-8 text."
    YamlParse Error "LOAD_ERR_YAML_PARSE"
        "A rule file is not YAML"
        "The text breaks YAML's own rules: indentation, quotes, brackets, or it exceeds the limits \
         on size, depth and aliases that protect the loader."
    YamlValidate Error "LOAD_ERR_YAML_VALIDATE"
        "A rule file has the wrong shape"
        "The YAML is fine but is not a list of items with the keys that a rule, macro or list needs, \
         or a value has the wrong type, such as text where a list belongs."
    CompileCondition Error "LOAD_ERR_COMPILE_CONDITION"
        "A condition cannot be compiled"
        "The condition breaks the grammar, names an unknown field or compares a field with a value \
         of another type."
    CompileOutput Error "LOAD_ERR_COMPILE_OUTPUT"
        "An output cannot be compiled"
        "The output names an unknown field or an unfinished one."
    Validate Error "LOAD_ERR_VALIDATE"
        "An item contradicts the others"
        "The item is well formed but cannot be used: it names an undefined macro, appends to something \
        undefined, needs a newer engine or a missing plugin, or its exception \
         has fields and values that do not pair up."
    Extension Error "LOAD_ERR_EXTENSION"
        "An extension item is wrong"
        "An item that an extension handles was refused by it. There are no extensions here, nor in Falco \
         as it is published: the code stands for those of others."
    UncheckedSource Error "LOAD_ERR_UNCHECKED_SOURCE"
        "A rule of an event source without its plugin cannot be checked"
        "No plugin that is loaded has this source, so nothing of the rule is known to be right. Falco has no such error: \
         only `tollgate rules check` looks."
    UnknownSource Warning "LOAD_UNKNOWN_SOURCE"
        "A rule has an unknown event source"
        "Nothing here produces events of this source, so the rule is left out."
    UnsafeNaCheck Warning "LOAD_UNSAFE_NA_CHECK"
        "A field is compared with `<NA>`"
        "<NA> is how a missing value is printed, not a value: use `exists` or `not FIELD exists`. \
         Falco says so of fields of Kubernetes audit and JSON events alone, which are unknown here."
    NoEvtType Warning "LOAD_NO_EVTTYPE"
        "A condition does not restrict the event type"
        "The rule needs nearly every event, which is slow: add a check of evt.type."
    UnknownTechnique Warning "LOAD_UNKNOWN_TECHNIQUE"
        "A tag is no technique and no tactic of MITRE ATT&CK"
        "The tag has the form of a technique, such as T1059.004, or of a tactic, such as mitre_execution, and there is \
        none of this name: `rules coverage` leaves it out. Falco has no such warning: only `tollgate rules check` looks."
    UnknownLevel Warning "LOAD_UNKNOWN_LEVEL"
        "A tag is no level of rules"
        "The tag begins with level_ and names no level, so the rule is on at every level. Falco has no levels: only \
        `tollgate rules check` looks."
    UnknownFilter Warning "LOAD_UNKNOWN_FILTER"
        "A rule with an unknown field or event type is left out"
        "The rule asks for this with skip-if-unknown-filter; without it this is an error."
    UnusedMacro Warning "LOAD_UNUSED_MACRO"
        "A macro is not used"
        "No rule and no other macro refers to it."
    UnusedList Warning "LOAD_UNUSED_LIST"
        "A list is not used"
        "No rule, macro or other list refers to it."
    ReplacedBuiltin Warning "LOAD_REPLACED_BUILTIN"
        "A macro or list of the built-in rules is replaced"
        "A file that was written to stand alone defines a macro or list whose name the built-in rules use, too: as \
         in Falco, they use the later definition. Falco has no such warning, as it has no built-in rules."
    UnknownItem Warning "LOAD_UNKNOWN_ITEM"
        "An item of unknown kind is ignored"
        "An item has to have one of the keys rule, macro, list, required_engine_version and \
         required_plugin_versions."
    DeprecatedItem Warning "LOAD_DEPRECATED_ITEM"
        "An old notation is used"
        "It works today; the help says what replaces it."
    AppendNoEvtType Warning "LOAD_APPEND_NO_EVTTYPE"
        "A condition that was appended to does not restrict the event type"
        "The appended condition matches events of any type, so the rule needs nearly every event: add a \
        check of evt.type to it. Falco 0.44 reports LOAD_NO_EVTTYPE alone; that is reported, too."
    ExtensionWarning Warning "LOAD_WARNING_EXTENSION"
        "An extension item is doubtful"
        "An extension accepted the item but warns about it. As LOAD_ERR_EXTENSION."
    AppendNoValues Warning "LOAD_APPEND_NO_VALUES"
        "An appended exception has no values"
        "Appending to an exception adds values; without them nothing happens."
    ExceptionNameNotUnique Warning "LOAD_EXCEPTION_NAME_NOT_UNIQUE"
        "Two exceptions of a rule have the same name"
        "Values appended later go to the first of them only."
    InvalidMacroName Warning "LOAD_INVALID_MACRO_NAME"
        "A macro has a name that no condition can spell"
        "Names of macros begin with a letter and have letters, digits and underscores only."
    InvalidListName Warning "LOAD_INVALID_LIST_NAME"
        "A list has a name that no condition can spell"
        "Names of lists have no blanks, quotes, parentheses, commas or equal signs."
    ConditionWarning Warning "LOAD_COMPILE_CONDITION"
        "A condition is doubtful"
        "The condition compiles but likely does not mean what it seems to."
    DoubtfulCondition Warning "LOAD_DOUBTFUL_CONDITION"
        "A condition is doubtful, and Falco does not say so"
        "The condition is expensive, asks for something that no event has, or names a list that does not exist. Falco \
        has no such warning: `tollgate falco` leaves it out."
    UnknownKey Warning "LOAD_UNKNOWN_KEY"
        "An item has an unknown key"
        "The key is ignored: it is misspelt or belongs to another kind of item."
}

impl Code {
    /// Returns true if Falco 0.44 has the code.
    #[must_use]
    pub fn is_falcos(self) -> bool {
        !matches!(
            self,
            Self::AppendNoEvtType
                | Self::DoubtfulCondition
                | Self::ReplacedBuiltin
                | Self::UncheckedSource
                | Self::UnknownLevel
                | Self::UnknownTechnique
        )
    }

    /// Returns the code with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.name() == name)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl yaml::Code for Code {
    fn name(self) -> &'static str {
        self.name()
    }

    fn severity(self) -> Severity {
        self.severity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_unique_names_that_read_back() {
        for &code in Code::ALL {
            assert_eq!(Code::from_name(code.name()), Some(code));
            assert!(code.name().starts_with("LOAD_"));
            assert_eq!(
                code.name().starts_with("LOAD_ERR_"),
                code.severity() == Severity::Error
            );
            assert!(code.description().ends_with('.'));
        }
        assert_eq!(Code::from_name("LOAD_NOTHING"), None);
    }
}
