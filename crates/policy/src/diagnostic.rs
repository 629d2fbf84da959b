//! Diagnostics on policies.

use yaml::Severity;

/// One diagnostic on a policy file.
pub type Diagnostic = yaml::Diagnostic<Code>;

/// Declares the codes, each with name, severity and title.
macro_rules! codes {
    ($($variant:ident $severity:ident $name:literal $title:literal)*) => {
        /// Code of a diagnostic.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code { $(#[doc = $title] $variant,)* }

        impl Code {
            /// All codes.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// One-line description of the code.
            #[must_use]
            pub fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)* }
            }
        }

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
    FileRead Error "POLICY_FILE_READ" "The file cannot be read"
    YamlParse Error "POLICY_YAML_PARSE" "The file is not YAML"
    Shape Error "POLICY_SHAPE" "A value has the wrong type, or a key is missing or twice"
    UnknownField Error "POLICY_UNKNOWN_FIELD" "A key that means nothing here"
    UnknownRule Error "POLICY_UNKNOWN_RULE" "A built-in rule of this name does not exist"
    UnknownValue Error "POLICY_UNKNOWN_VALUE" "An unknown word or number"
    Contradiction Error "POLICY_CONTRADICTION" "Two settings exclude each other, or one does nothing"
    TargetsIgnored Error "POLICY_TARGETS_IGNORED" "Rules for single programs, which no chosen enforcer \
    can distinguish"
    NoEnforcer Error "POLICY_NO_ENFORCER" "No chosen enforcer supports the rule"
    NotAccepted Error "POLICY_NOT_ACCEPTED" "A rule that is to be accepted is not in the policy"
    Partial Warning "POLICY_PARTIAL" "Every chosen enforcer enforces the rule only partially"
    Accepted Warning "POLICY_ACCEPTED" "The rule is not enforced in full, which was accepted by name"
}
