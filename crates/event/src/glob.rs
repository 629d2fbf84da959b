//! Shell patterns with the semantics of fnmatch(3) without flags: `*` and `?` also match `/` and a leading
//! dot. Patterns work on bytes, as paths do.

/// A compiled pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    tokens: Box<[Token]>,
    fold_case: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Byte(u8),
    AnyByte,
    AnyBytes,
    /// A bracket expression, with one bit for each byte value.
    Class([u64; 4]),
    /// A backslash at the end of a pattern, which never matches in glibc's fnmatch(3).
    Never,
}

impl Glob {
    /// Compiles a pattern; every text is a valid pattern.
    pub fn new(pattern: &[u8], fold_case: bool) -> Self {
        let mut tokens = Vec::with_capacity(pattern.len());
        let mut rest = pattern;
        while let [first, tail @ ..] = rest {
            rest = tail;
            let token = match first {
                b'*' if tokens.last() == Some(&Token::AnyBytes) => continue,
                b'*' => Token::AnyBytes,
                b'?' => Token::AnyByte,
                b'[' => match parse_class(tail, fold_case) {
                    Some((class, after)) => {
                        rest = after;
                        Token::Class(class)
                    }
                    None => Token::Byte(b'['),
                },
                b'\\' => match tail {
                    [escaped, after @ ..] => {
                        rest = after;
                        Token::Byte(fold(*escaped, fold_case))
                    }
                    [] => Token::Never,
                },
                byte => Token::Byte(fold(*byte, fold_case)),
            };
            tokens.push(token);
        }
        Self {
            tokens: tokens.into(),
            fold_case,
        }
    }

    /// Returns true if a text has a character that is special in a pattern.
    pub fn is_pattern(text: &[u8]) -> bool {
        text.iter().any(|byte| b"?*[".contains(byte))
    }

    /// Returns true if the pattern matches the whole of `text`. Time is at most the product of both lengths:
    /// only the last of several stars can need another try.
    pub fn matches(&self, text: &[u8]) -> bool {
        let (mut token, mut at) = (0, 0);
        let mut retry: Option<(usize, usize)> = None;
        loop {
            let step = match self.tokens.get(token) {
                Some(Token::AnyBytes) => {
                    token += 1;
                    retry = Some((token, at));
                    continue;
                }
                Some(expected) => text
                    .get(at)
                    .is_some_and(|byte| self.accepts(expected, *byte)),
                None if at == text.len() => return true,
                None => false,
            };
            if step {
                token += 1;
                at += 1;
                continue;
            }
            let Some((after_star, from)) = retry else {
                return false;
            };
            if from >= text.len() {
                return false;
            }
            token = after_star;
            at = from + 1;
            retry = Some((after_star, at));
        }
    }

    fn accepts(&self, token: &Token, byte: u8) -> bool {
        let byte = fold(byte, self.fold_case);
        match token {
            Token::Byte(expected) => *expected == byte,
            Token::AnyByte | Token::AnyBytes => true,
            Token::Class(bits) => bits[usize::from(byte / 64)] >> (byte % 64) & 1 == 1,
            Token::Never => false,
        }
    }
}

fn fold(byte: u8, fold_case: bool) -> u8 {
    if fold_case {
        byte.to_ascii_lowercase()
    } else {
        byte
    }
}

/// Parses the text after `[`; `None` if no `]` closes it: the bracket is then an ordinary character.
fn parse_class(text: &[u8], fold_case: bool) -> Option<([u64; 4], &[u8])> {
    let mut bits = [0_u64; 4];
    let mut add = |byte: u8| {
        let byte = fold(byte, fold_case);
        bits[usize::from(byte / 64)] |= 1 << (byte % 64);
    };
    let negated = matches!(text.first(), Some(b'!' | b'^'));
    let mut rest = if negated { &text[1..] } else { text };
    let mut first = true;
    loop {
        let (&byte, tail) = rest.split_first()?;
        rest = tail;
        if byte == b']' && !first {
            break;
        }
        first = false;
        if byte == b'['
            && let Some((belongs, after)) = named_class(rest)
        {
            (0..=u8::MAX).filter(belongs).for_each(&mut add);
            rest = after;
            continue;
        }
        let low = unescape(byte, &mut rest)?;
        match rest {
            [b'-', high, tail @ ..] if *high != b']' => {
                rest = tail;
                let high = unescape(*high, &mut rest)?;
                (low..=high).for_each(&mut add);
            }
            _ => add(low),
        }
    }
    if negated {
        bits = bits.map(|word| !word);
    }
    Some((bits, rest))
}

fn unescape(byte: u8, rest: &mut &[u8]) -> Option<u8> {
    if byte != b'\\' {
        return Some(byte);
    }
    let (&escaped, tail) = rest.split_first()?;
    *rest = tail;
    Some(escaped)
}

type Belongs = fn(&u8) -> bool;

/// Parses a named class such as `:alpha:]`, after its opening bracket.
fn named_class(text: &[u8]) -> Option<(Belongs, &[u8])> {
    let name = text.strip_prefix(b":")?;
    let end = name.windows(2).position(|pair| pair == b":]")?;
    let belongs: Belongs = match &name[..end] {
        b"alnum" => u8::is_ascii_alphanumeric,
        b"alpha" => u8::is_ascii_alphabetic,
        b"blank" => |byte| matches!(byte, b' ' | b'\t'),
        b"cntrl" => u8::is_ascii_control,
        b"digit" => u8::is_ascii_digit,
        b"graph" => u8::is_ascii_graphic,
        b"lower" => u8::is_ascii_lowercase,
        b"print" => |byte| byte.is_ascii_graphic() || *byte == b' ',
        b"punct" => u8::is_ascii_punctuation,
        b"space" => |byte| byte.is_ascii_whitespace() || *byte == 0x0b,
        b"upper" => u8::is_ascii_uppercase,
        b"xdigit" => u8::is_ascii_hexdigit,
        _ => return None,
    };
    Some((belongs, &name[end + 2..]))
}

#[cfg(test)]
mod tests {
    use super::Glob;

    fn matches(pattern: &str, text: &str) -> bool {
        Glob::new(pattern.as_bytes(), false).matches(text.as_bytes())
    }

    #[test]
    fn patterns_match_as_fnmatch_without_flags() {
        let cases = [
            ("/home/*/.ssh/*", "/home/a/b/.ssh/id_rsa", true),
            ("/home/*/.ssh/*", "/home/.ssh/id_rsa", false),
            ("*../*../*", "/a/../../etc", true),
            ("*../*../*", "/a/../etc", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[^a-c]x", "dx", true),
            ("[]a]", "]", true),
            ("[a-]", "-", true),
            ("[[:digit:]]*", "7z", true),
            ("[[:digit:]]*", "z7", false),
            ("[abc", "[abc", true),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("abc\\", "abc\\", false),
            ("**a**b", "xaxb", true),
            ("*a*b*c", "aabbcx", false),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(matches(pattern, text), expected, "{pattern} on {text}");
        }
    }

    #[test]
    fn case_is_folded_on_both_sides() {
        let glob = Glob::new(b"*PASS[A-F]*", true);
        assert!(glob.matches(b"xpassE"));
        assert!(!glob.matches(b"xpassg"));
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        let pattern = "a*".repeat(40) + "b";
        assert!(!matches(&pattern, &"a".repeat(2000)));
    }
}
