use proptest::prelude::*;

use super::ast::*;
use super::parser::{
    MAX_DEPTH, MAX_LENGTH, ParseError, parse, parse_operand, parse_operand_prefix, parse_operator,
    parse_value,
};

const SOURCE: SourceId = SourceId(7);

fn ok(text: &str) -> Expr {
    parse(text, SOURCE).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

fn err(text: &str) -> ParseError {
    match parse(text, SOURCE) {
        Ok(expr) => panic!("{text:?} was taken as {expr}"),
        Err(error) => error,
    }
}

/// Removes positions, so that trees of differently spaced texts compare equal.
fn strip(mut expr: Expr) -> Expr {
    strip_expr(&mut expr);
    expr
}

const NOWHERE: Span = Span {
    source: SOURCE,
    start: 0,
    end: 0,
};

fn strip_expr(expr: &mut Expr) {
    expr.span = NOWHERE;
    match &mut expr.kind {
        ExprKind::And(children) | ExprKind::Or(children) => {
            children.iter_mut().for_each(strip_expr);
        }
        ExprKind::Not(child) | ExprKind::Expanded { body: child, .. } => strip_expr(child),
        ExprKind::Exists(operand) => strip_operand(operand),
        ExprKind::Compare(compare) => {
            strip_operand(&mut compare.left);
            compare.op_span = NOWHERE;
            match &mut compare.right {
                Value::Literal(literal) => literal.span = NOWHERE,
                Value::List(items, span) => {
                    *span = NOWHERE;
                    items.iter_mut().for_each(|item| item.span = NOWHERE);
                }
                Value::ListName(_, span) => *span = NOWHERE,
                Value::Operand(operand) => strip_operand(operand),
            }
        }
        ExprKind::Macro(_) => {}
    }
}

fn strip_operand(operand: &mut Operand) {
    let (arg, span) = match operand {
        Operand::Field(field) => (&mut field.arg, &mut field.span),
        Operand::Call(call) => {
            call.args.iter_mut().for_each(strip_arg);
            (&mut call.arg, &mut call.span)
        }
    };
    *span = NOWHERE;
    if let Some(arg) = arg {
        arg.span = NOWHERE;
    }
}

fn strip_arg(arg: &mut Arg) {
    match arg {
        Arg::Operand(operand) => strip_operand(operand),
        Arg::Literal(literal) => literal.span = NOWHERE,
        Arg::List(args, span) => {
            *span = NOWHERE;
            args.iter_mut().for_each(strip_arg);
        }
    }
}

/// Valid conditions, with their printed form (`""`: unchanged).
const ACCEPTED: &[(&str, &str)] = &[
    // Structure.
    ("open_write", ""),
    ("  open_write\n", "open_write"),
    ("(open_write)", "open_write"),
    ("((open_write))", "open_write"),
    ("a and b and c", ""),
    ("a or b or c", ""),
    ("a and b or c", ""),
    ("a or b and c", ""),
    ("(a or b) and c", ""),
    ("a and (b or c)", ""),
    ("(a and b) or c", "a and b or c"),
    ("(a and b) and c", ""),
    ("a or (b or c)", ""),
    ("a and(b)", "a and b"),
    ("(a)and(b)or(c)", "a and b or c"),
    ("a or(b) and c", "a or b and c"),
    ("not a", ""),
    ("not(a)", "not a"),
    ("not not a", "a"),
    ("not not not a", "not a"),
    ("not (not a)", ""),
    ("not(not(a))", "not (not a)"),
    ("not (a or b)", ""),
    ("not a and not b", ""),
    ("not_a and and_b or or_c", ""),
    ("nothing or android and order", ""),
    ("a\tand\r\nb", "a and b"),
    ("a and\n\n  not\n (b)", "a and not b"),
    // Unary check.
    ("fd.name exists", ""),
    ("not fd.name exists", ""),
    ("fd.name exists and a", ""),
    ("(fd.name exists)or(a)", "fd.name exists or a"),
    ("fd.name existsand a", "fd.name exists and a"),
    // Fields and arguments.
    ("evt.arg[0] = x", ""),
    ("evt.arg.flags = x", ""),
    ("evt.arg[flags] = x", ""),
    ("proc.aname[2] in (sshd)", ""),
    ("proc.env[LD_PRELOAD] exists", ""),
    ("k8s.ns.label[\"a.b\"] = x", ""),
    ("k8s.ns.label['a.b c'] = x", "k8s.ns.label[\"a.b c\"] = x"),
    ("json.value[/a/b~1c] = x", ""),
    ("evt.rawarg.res < 0", ""),
    ("evt.arg[\"\"] = x", ""),
    ("evt.arg[a(b)=,] = x", ""),
    ("a.b.c.d_1 exists", ""),
    // Every operator, with and without blanks.
    ("proc.name=bash", "proc.name = bash"),
    ("proc.name==bash", "proc.name = bash"),
    ("proc.name == bash", "proc.name = bash"),
    ("proc.name !=bash", "proc.name != bash"),
    ("proc.pid<1", "proc.pid < 1"),
    ("proc.pid <= 1", ""),
    ("proc.pid>1", "proc.pid > 1"),
    ("proc.pid >=1", "proc.pid >= 1"),
    ("fd.name contains .ssh", ""),
    ("fd.name icontains .ssh", ""),
    ("evt.buffer bcontains cafe", ""),
    ("fd.name startswith /etc/", ""),
    ("evt.buffer bstartswith 7f454c46", ""),
    ("fd.name endswith .so", ""),
    ("fd.name glob /etc/*.conf", ""),
    ("fd.name iglob */*.EXE", ""),
    (
        "proc.cmdline regex '^a[0-9]+.*$'",
        "proc.cmdline regex \"^a[0-9]+.*$\"",
    ),
    ("proc.name in (a, b)", ""),
    ("proc.name in(a,b)", "proc.name in (a, b)"),
    ("proc.name in ()", ""),
    ("proc.name in ( )", "proc.name in ()"),
    ("proc.name in shells", ""),
    ("proc.name in (shells)", ""),
    ("proc.args intersects (a, \"b c\")", ""),
    ("fd.name pmatch (/etc, /usr/bin)", ""),
    ("proc.name contains\n bash", "proc.name contains bash"),
    // Values.
    ("proc.name = *.log", ""),
    ("proc.name = 0x1F", ""),
    ("proc.name = a:b;c!d@e#f", ""),
    ("proc.name = [a]{b}|c", ""),
    ("proc.name = not", ""),
    ("proc.name = in", ""),
    ("proc.name = val", ""),
    ("proc.name = fd.name", ""),
    ("proc.name = tolower and a", ""),
    ("evt.is_open_write = true", ""),
    ("evt.dir = <", ""),
    ("evt.dir = > and a", ""),
    ("evt.dir=<", "evt.dir = <"),
    ("fd.sip = 10.0.0.0/8", ""),
    ("fd.sip = fe80::1", ""),
    ("proc.name = \u{fc}n\u{ef}c\u{f6}de", ""),
    ("proc.name = ''", "proc.name = \"\""),
    ("proc.name = \"\"", ""),
    ("proc.name = 'a b'", "proc.name = \"a b\""),
    ("proc.name = '\"'", "proc.name = \"\\\"\""),
    ("proc.name = \"it's\"", ""),
    ("proc.name = 'it\\'s'", "proc.name = \"it's\""),
    ("proc.name = \"a\\tb\\nc\\rd\"", ""),
    ("proc.name = \"\\x41\\xff\"", "proc.name = \"A\\xff\""),
    ("proc.name = \"a\\/b\"", "proc.name = \"a/b\""),
    ("proc.name = \"a\\\\b\"", "proc.name = \"a\\x5cb\""),
    ("proc.name = \"a\\ b\"", "proc.name = \"a\\x5cb\""),
    ("proc.name = \"\\b\\f\"", "proc.name = \"\\x08\\x0c\""),
    (
        "proc.name in (\"a,b\", 'c)d', e)",
        "proc.name in (\"a,b\", \"c)d\", e)",
    ),
    // Numbers.
    ("evt.res > 0x1f", ""),
    ("evt.res > 0XAB", ""),
    ("evt.res > -1", ""),
    ("evt.res > +1", ""),
    ("evt.res > 1.5", ""),
    ("evt.res > 1.", ""),
    ("evt.res > 1e+3", ""),
    ("evt.res > 1.5E-10", ""),
    // Quantifiers.
    ("proc.name = oneof (a, b)", ""),
    ("proc.name == anyof (a)", "proc.name = anyof (a)"),
    ("proc.name != allof (a, b)", ""),
    ("fd.name startswith anyof (/etc, /usr)", ""),
    ("fd.name startswith anyof dirs", ""),
    ("fd.name endswith oneof ()", ""),
    ("fd.name glob allof (\"*a*\", *b*)", ""),
    (
        "fd.name regex anyof ('a.*', 'b')",
        "fd.name regex anyof (\"a.*\", \"b\")",
    ),
    ("proc.name =\toneof\n(a)", "proc.name = oneof (a)"),
    ("proc.name = oneof", ""),
    ("proc.name = anyof and a", ""),
    ("proc.name = anyof or a", ""),
    ("(proc.name = allof)", "proc.name = allof"),
    ("proc.name = oneof_x", ""),
    ("proc.name = oneof oneof", ""),
    ("proc.name = anyof android", ""),
    // Transformers.
    ("tolower(proc.name) = bash", ""),
    ("toupper( proc.name ) = BASH", "toupper(proc.name) = BASH"),
    ("b64(evt.arg.data) contains x", ""),
    ("basename(proc.exepath) = nc", ""),
    ("len(proc.args) > 3", ""),
    ("len(fd.name) exists", ""),
    ("tolower(toupper(b64(proc.name))) = x", ""),
    (
        "join(\"-\", (proc.name, \"x\", 12, tolower(fd.name))) = x",
        "",
    ),
    ("join(\",\", ()) = x", ""),
    ("concat(proc.name, \":\", proc.pid) = x", ""),
    ("getopt(proc.args, \"nt:\")[t] exists", ""),
    ("getopt(proc.args, \"nt:\")[\"t\"] = x", ""),
    ("tolower(proc.aname[1]) = x", ""),
    ("proc.name = val(proc.pname)", ""),
    (
        "proc.name=val( proc.aname[2] )",
        "proc.name = val(proc.aname[2])",
    ),
    ("proc.name = tolower(proc.pname)", ""),
    ("proc.name in val(proc.args)", ""),
    ("proc.name intersects tolower(proc.args)", ""),
    ("proc.pid > val(proc.ppid)", ""),
    ("proc.pid < len(proc.args)", ""),
    ("fd.name startswith concat(proc.cwd, \"/x\")", ""),
    ("tolower(a.b) = tolower(c.d) or b64(a.b) != b64(c.d)", ""),
];

#[test]
fn accepted_conditions_print_as_expected_and_parse_again() {
    for (text, printed) in ACCEPTED {
        let printed = if printed.is_empty() { text } else { printed };
        let expr = ok(text);
        assert_eq!(&expr.to_string(), printed, "{text:?}");
        assert_eq!(strip(ok(printed)), strip(expr), "{text:?}");
    }
}

#[test]
fn blanks_of_any_kind_change_nothing() {
    for (text, _) in ACCEPTED {
        // Inside quotes a blank is text.
        if text.contains(['"', '\'']) {
            continue;
        }
        let expected = strip(ok(text));
        for blank in ["\n", "\t", "\r\n", " \n  "] {
            let text = format!("{blank}{}{blank}", text.replace(' ', blank));
            assert_eq!(strip(ok(&text)), expected, "{text:?}");
        }
    }
}

/// Invalid conditions, with the column from 0, part of the message, part of the help.
const REJECTED: &[(&str, u32, &str, &str)] = &[
    ("", 0, "the condition is empty", ""),
    (" \n ", 3, "the condition is empty", ""),
    // Structure.
    ("a andb", 2, "expected `and`, `or` or the end", ""),
    ("aand b", 5, "found `b`", ""),
    (
        "a and b and",
        11,
        "expected an expression after `and`, found the end",
        "",
    ),
    ("a and b and ", 12, "found the end of the condition", ""),
    ("a or", 4, "expected an expression after `or`", ""),
    ("a and b not", 8, "found `not`", ""),
    ("and a", 0, "found `and`", ""),
    ("or a", 0, "found `or`", ""),
    ("not", 0, "found `not`", ""),
    ("not ", 4, "found the end of the condition", ""),
    ("a and or b", 6, "found `or`", ""),
    ("a not b", 2, "found `not`", ""),
    ("a notb", 2, "found `notb`", ""),
    ("a andnot b", 2, "found `andnot`", ""),
    ("(a)andnot(b)", 3, "found `andnot`", ""),
    ("(a)ornot(b)", 3, "found `ornot`", ""),
    ("(a", 2, "expected `and`, `or` or `)`, found the end", ""),
    ("(a and (b or c)", 15, "`)`", ""),
    ("a)", 1, "no parenthesis is open", ""),
    ("()", 1, "found `)`", ""),
    ("a && b", 2, "found `&&`", "write `and`"),
    ("a || b", 2, "found `||`", "write `or`"),
    ("!a", 0, "found `!a`", "write `not`"),
    ("a AND b", 2, "found `AND`", "lower case"),
    ("a OR b", 2, "found `OR`", "lower case"),
    ("# comment", 0, "found `#`", "no comments"),
    ("1abc", 0, "expected a field, a macro", ""),
    ("macro > 12", 6, "found `>`", ""),
    ("macro = x", 6, "found `=`", ""),
    // Operators.
    (
        "proc.name",
        9,
        "expected an operator after `proc.name`, found the end",
        "exists",
    ),
    (
        "(proc.name)",
        10,
        "expected an operator after `proc.name`, found `)`",
        "exists",
    ),
    (
        "proc.name contaisn x",
        10,
        "found `contaisn`",
        "did you mean `contains`?",
    ),
    (
        "proc.name starswith x",
        10,
        "found `starswith`",
        "did you mean `startswith`?",
    ),
    (
        "proc.name CONTAINS x",
        10,
        "found `CONTAINS`",
        "did you mean `contains`?",
    ),
    (
        "proc.name containsx",
        10,
        "expected an operator",
        "did you mean `contains`?",
    ),
    (
        "proc.name startswith",
        10,
        "expected an operator",
        "needs a value",
    ),
    (
        "proc.name contains ",
        19,
        "expected a value: text or a quoted string",
        "",
    ),
    ("proc.name =", 11, "expected a value", ""),
    ("proc.name = ", 12, "expected a value", ""),
    ("proc.name === x", 12, "expected a value", ""),
    ("proc.name !== x", 12, "expected a value", ""),
    ("proc.name exists x", 17, "found `x`", "quotes"),
    ("proc.name ExIsTs", 10, "found `ExIsTs`", "`exists`"),
    ("proc.name in", 12, "expected a list in parentheses", ""),
    ("proc.name in )", 13, "expected a list in parentheses", ""),
    ("proc.name in (", 14, "expected a value of the list", ""),
    ("proc.name in (a", 15, "expected `,` or `)`", ""),
    (
        "proc.name in (a,)",
        16,
        "expected a value of the list, found `)`",
        "",
    ),
    (
        "proc.name in (a,,b)",
        16,
        "expected a value of the list, found `,`",
        "",
    ),
    ("proc.name in (,)", 14, "expected a value of the list", ""),
    (
        "proc.name in (\"a\" b)",
        18,
        "expected `,` or `)`, found `b`",
        "",
    ),
    ("proc.name in (a=b)", 15, "expected `,` or `)`", ""),
    ("proc.name in (a (b))", 16, "expected `,` or `)`", ""),
    (
        "proc.name in (tolower(proc.name))",
        21,
        "expected `,` or `)`",
        "",
    ),
    ("proc.name in \"a\"", 13, "expected a list", ""),
    ("proc.name = (a)", 12, "expected a value", "`in`"),
    ("proc.name contains (a)", 19, "expected a value", "`in`"),
    ("proc.pid > (1)", 11, "expected a number", ""),
    (
        "proc.pid > a",
        11,
        "expected a number, `val(FIELD)` or a transformer, found `a`",
        "",
    ),
    ("proc.pid > \"1\"", 11, "expected a number", ""),
    ("proc.pid > 0x", 12, "found `x`", ""),
    ("proc.pid < 0xAAA.1", 16, "found `.1`", ""),
    ("proc.pid < !1", 11, "expected a number", ""),
    ("proc.name = b = c", 14, "found `=`", ""),
    ("proc.name = a,", 13, "found `,`", ""),
    ("proc.name = a b", 14, "found `b`", "needs quotes"),
    // Strings.
    ("proc.name = 'a", 12, "no closing `'`", ""),
    ("proc.name = \"a", 12, "no closing `\"`", ""),
    ("proc.name = \"", 12, "no closing", ""),
    ("proc.name = '\"", 12, "no closing `'`", ""),
    ("proc.name = 'a\\\\'", 12, "no closing `'`", "\\x5c"),
    (
        "proc.name = \"a\"\"",
        15,
        "found `\"`",
        "write the quote as",
    ),
    (
        "proc.name = \"a\\qb\"",
        14,
        "unknown escape `\\q`",
        "`\\\\`",
    ),
    ("proc.name = \"\\d+\"", 13, "unknown escape `\\d`", "`\\\\`"),
    ("proc.name = \"\\x4\"", 13, "two hexadecimal digits", ""),
    ("proc.name = \"\\xzz\"", 13, "two hexadecimal digits", ""),
    ("proc.name = \"a\\'b\"", 14, "`\\'` is not an escape", ""),
    ("proc.name = 'a\\\"b'", 14, "`\\\"` is not an escape", ""),
    ("proc.name in ('a\\qb')", 16, "unknown escape `\\q`", ""),
    ("proc.name = \"a\0b\"", 12, "no closing", ""),
    // Arguments.
    ("evt.arg[] = x", 8, "expected an argument", ""),
    ("evt.arg[ a ] = x", 8, "expected an argument", ""),
    ("evt.arg[a = x", 9, "expected `]`", ""),
    ("evt.arg[a]] = x", 10, "expected an operator", ""),
    ("evt.arg[[a] = x", 8, "expected an argument", ""),
    ("evt.arg[\"a = x", 8, "no closing", ""),
    ("evt.arg[\"a\" = x", 11, "expected `]`", ""),
    ("evt.arg['''] = a", 10, "expected `]`", ""),
    ("evt.arg[aa\"] = a", 10, "expected `]`", ""),
    ("evt.arg [0] = x", 8, "expected an operator", ""),
    ("evt.arg] = x", 7, "expected an operator", ""),
    // Quantifiers.
    ("proc.name =oneof (a)", 17, "found `(`", ""),
    ("proc.name = oneof(a)", 17, "found `(`", ""),
    ("proc.name = ONEOF (a)", 18, "found `(`", ""),
    ("proc.name = oneof_x (a)", 20, "found `(`", ""),
    (
        "proc.name = oneof (a,)",
        21,
        "expected a value of the list",
        "",
    ),
    ("proc.name = oneof (a", 20, "expected `,` or `)`", ""),
    ("proc.pid > oneof (1)", 11, "expected a number", ""),
    ("proc.name in oneof (a)", 19, "found `(`", ""),
    (
        "proc.name startswith anyof val(fd.name)",
        30,
        "found `(`",
        "",
    ),
    // Transformers.
    (
        "val(proc.name) exists",
        0,
        "unknown transformer `val`",
        "right of an operator",
    ),
    (
        "tolowr(proc.name) = x",
        0,
        "unknown transformer `tolowr`",
        "did you mean `tolower`?",
    ),
    (
        "frobnicate(proc.name) = x",
        0,
        "unknown transformer `frobnicate`",
        "without parentheses",
    ),
    (
        "spawned_process()",
        0,
        "unknown transformer",
        "without parentheses",
    ),
    ("tolower (proc.name) = x", 8, "found `(`", ""),
    ("tolower() = x", 8, "expected a field, a transformer", ""),
    (
        "tolower(proc) = x",
        8,
        "expected a field, a transformer",
        "",
    ),
    ("tolower(proc.name = x", 18, "expected `,` or `)`", ""),
    (
        "tolower(proc.name)) = x",
        18,
        "expected an operator after `tolower(..)`",
        "",
    ),
    ("tolower(proc.name,) = x", 18, "expected a field", ""),
    ("tolower(proc.aname [1]) = x", 19, "expected `,` or `)`", ""),
    (
        "tolower(val(proc.name)) = x",
        8,
        "expected a field without `val`",
        "as it is",
    ),
    (
        "tolower(toloer(proc.name)) = x",
        8,
        "unknown transformer `toloer`",
        "`tolower`",
    ),
    (
        "proc.name = val(val(proc.name))",
        16,
        "expected a field",
        "plain field",
    ),
    (
        "proc.name = val(tolower(proc.name))",
        16,
        "expected a field",
        "plain field",
    ),
    ("proc.name = val(proc.name", 25, "expected `)`", ""),
    ("proc.name = val(name)", 16, "expected a field", ""),
    ("proc.name = foo(proc.name)", 15, "found `(`", ""),
    ("proc.name = tolower (proc.name)", 20, "found `(`", ""),
    ("join(\"-\", (a.b, (c.d))) = x", 16, "expected a field", ""),
    ("join(\"-\", (a.b,)) = x", 15, "expected a field", ""),
    ("join(\"-\", (a.b) = x", 16, "expected `,` or `)`", ""),
    (
        "getopt(proc.args, \"nt:\")[] = x",
        25,
        "expected an argument",
        "",
    ),
    (
        "getopt(proc.args, \"nt:\")[\"t\" = x",
        28,
        "expected `]`",
        "",
    ),
];

#[test]
fn rejected_conditions_say_where_and_what() {
    for &(text, column, message, help) in REJECTED {
        let error = err(text);
        assert_eq!(error.span.start, column, "{text:?}: {error}");
        assert!(error.message.contains(message), "{text:?}: {error}");
        let got = error.help.as_deref().unwrap_or("");
        assert!(got.contains(help), "{text:?}: {got}");
        assert_eq!(error.span.source, SOURCE);
        assert!(
            usize::try_from(error.span.end).unwrap() <= text.len(),
            "{text:?}"
        );
    }
}

#[test]
fn nesting_has_a_limit_that_the_stack_of_a_thread_can_bear() {
    let nested = |open: &str, depth: usize| {
        format!(
            "{}a{}",
            open.repeat(depth),
            ")".repeat(depth * open.matches('(').count())
        )
    };
    let check = move || {
        for open in ["(", "not(", "(a and ", "(a or not ("] {
            let per_open = open.matches('(').count();
            let expr = ok(&nested(open, MAX_DEPTH / per_open));
            assert_eq!(strip(ok(&expr.to_string())), strip(expr.clone()));
            let error = err(&nested(open, MAX_DEPTH / per_open + 1));
            assert!(error.message.contains("parentheses are open"), "{error}");
        }
        let calls = format!(
            "{}a.b{} = x",
            "len(".repeat(MAX_DEPTH),
            ")".repeat(MAX_DEPTH)
        );
        ok(&calls);
        assert!(
            err(&"(".repeat(100_000))
                .message
                .contains("parentheses are open")
        );
        assert!(
            err(&"len(".repeat(100_000))
                .message
                .contains("parentheses are open")
        );
        ok(&format!("{}a", "not ".repeat(100_000)));
    };
    std::thread::Builder::new()
        .stack_size(2 << 20)
        .spawn(check)
        .unwrap()
        .join()
        .unwrap();
}

#[test]
fn length_has_a_limit() {
    let text = format!("a{}", " ".repeat(MAX_LENGTH));
    assert!(err(&text).message.contains("the limit is"));
    ok(&text[..MAX_LENGTH]);
}

#[test]
fn spans_cover_what_was_written() {
    let text = " a.b[\"x\"] startswith  anyof (c, \"d e\") and not  ( len(f.g) > 1 or m ) ";
    let expr = ok(text);
    let at = |span: Span| {
        &text[usize::try_from(span.start).unwrap()..usize::try_from(span.end).unwrap()]
    };
    assert_eq!(at(expr.span), text.trim());
    let ExprKind::And(children) = &expr.kind else {
        panic!("{expr}")
    };
    let ExprKind::Compare(compare) = &children[0].kind else {
        panic!("{expr}")
    };
    assert_eq!(
        at(children[0].span),
        "a.b[\"x\"] startswith  anyof (c, \"d e\")"
    );
    assert_eq!(at(compare.left.span()), "a.b[\"x\"]");
    assert_eq!(at(compare.op_span), "startswith  anyof");
    assert_eq!(at(compare.right.span()), "(c, \"d e\")");
    let Value::List(items, _) = &compare.right else {
        panic!("{expr}")
    };
    assert_eq!(
        items.iter().map(|item| at(item.span)).collect::<Vec<_>>(),
        ["c", "\"d e\""]
    );
    assert_eq!(at(children[1].span), "not  ( len(f.g) > 1 or m )");
    let ExprKind::Not(inner) = &children[1].kind else {
        panic!("{expr}")
    };
    assert_eq!(at(inner.span), "( len(f.g) > 1 or m )");
}

#[test]
fn parse_operand_takes_a_field_or_a_transformer_only() {
    assert_eq!(
        parse_operand("proc.aname[2]", SOURCE).unwrap().to_string(),
        "proc.aname[2]"
    );
    assert_eq!(
        parse_operand("tolower(a.b) ", SOURCE).unwrap().to_string(),
        "tolower(a.b)"
    );
    for text in ["", "name", "a.b = c", "a.b c.d", "\"a.b\"", "val(a.b)"] {
        assert!(parse_operand(text, SOURCE).is_err(), "{text:?}");
    }
}

#[test]
fn parse_operand_prefix_stops_where_the_field_ends() {
    for (text, len) in [
        ("proc.name", 9),
        ("proc.name.", 9),
        ("proc.name file=%fd.name", 9),
        ("proc.aname[2])", 13),
        ("evt.arg[\"a b\"], x", 14),
        ("toupper(proc.name)(", 18),
    ] {
        assert_eq!(
            parse_operand_prefix(text, SOURCE).unwrap().1,
            len,
            "{text:?}"
        );
    }
    assert!(parse_operand_prefix("% of all", SOURCE).is_err());
}

#[test]
fn parse_operator_knows_the_quantifiers() {
    assert_eq!(parse_operator("=="), Some((Op::Eq, None)));
    assert_eq!(parse_operator(" in "), Some((Op::In, None)));
    assert_eq!(
        parse_operator("startswith  anyof"),
        Some((Op::StartsWith, Some(Quantifier::AnyOf)))
    );
    for text in [
        "",
        "is",
        "exists",
        "in oneof",
        "> anyof",
        "= oneof x",
        "= some",
        "===",
    ] {
        assert_eq!(parse_operator(text), None, "{text:?}");
    }
}

#[test]
fn parse_value_obeys_the_operator() {
    let value = |op, quantifier, text| {
        parse_value(op, quantifier, text, SOURCE)
            .map(|value| value.to_string())
            .ok()
    };
    assert_eq!(value(Op::Eq, None, "a").as_deref(), Some("a"));
    assert_eq!(value(Op::Eq, None, "val(a.b)").as_deref(), Some("val(a.b)"));
    assert_eq!(value(Op::Eq, None, "a b"), None);
    assert_eq!(value(Op::In, None, "(a, b)").as_deref(), Some("(a, b)"));
    assert_eq!(value(Op::Gt, None, "x"), None);
    assert_eq!(
        value(Op::Eq, Some(Quantifier::OneOf), "(a)").as_deref(),
        Some("(a)")
    );
    assert_eq!(value(Op::Eq, Some(Quantifier::OneOf), "val(a.b)"), None);
}

#[test]
fn walk_fields_sees_both_sides_and_transformers() {
    let expr = ok("not (a.a exists or len(join(\"\", (b.b, 1))) = 2) and c.c = val(d.d[1]) or m");
    let mut names = Vec::new();
    expr.walk_fields(&mut |field| names.push(field.name.as_str()));
    assert_eq!(names, ["a.a", "b.b", "c.c", "d.d"]);
}

fn identifier() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9_]{0,6}".prop_filter("not a keyword", |word| {
        !matches!(word.as_str(), "and" | "or" | "not" | "exists" | "val")
    })
}

fn field_name() -> impl Strategy<Value = String> {
    prop::collection::vec(identifier(), 2..4).prop_map(|parts| parts.join("."))
}

fn literal() -> impl Strategy<Value = Literal> {
    prop_oneof![
        "[a-z0-9_./*:<>!-]{1,8}".prop_map(|text| (text.into_bytes(), false)),
        prop::collection::vec(any::<u8>(), 0..8).prop_map(|bytes| (bytes, true)),
        "[\\x00-\\x7fäß€\\\\'\"]{0,8}".prop_map(|text| (text.into_bytes(), true)),
    ]
    .prop_map(|(bytes, quoted)| Literal {
        text: bytes.into(),
        quoted,
        span: NOWHERE,
    })
}

fn number() -> impl Strategy<Value = Literal> {
    "(-?[0-9]{1,5}(\\.[0-9]{1,3})?)|(0x[0-9a-f]{1,6})".prop_map(|text| Literal {
        text: text.as_str().into(),
        quoted: false,
        span: NOWHERE,
    })
}

fn bracket() -> impl Strategy<Value = Option<FieldArg>> {
    prop::option::of(prop_oneof![
        "[a-z0-9./(=,-]{1,5}".prop_map(|text| (text.into_bytes(), false)),
        prop::collection::vec(any::<u8>(), 0..5).prop_map(|bytes| (bytes, true)),
    ])
    .prop_map(|arg| {
        arg.map(|(bytes, quoted)| FieldArg {
            text: bytes.into(),
            quoted,
            span: NOWHERE,
        })
    })
}

fn field() -> impl Strategy<Value = Field> {
    (field_name(), bracket()).prop_map(|(name, arg)| Field {
        name,
        arg,
        span: NOWHERE,
    })
}

fn operand() -> impl Strategy<Value = Operand> {
    let leaf = field().prop_map(Operand::Field);
    leaf.prop_recursive(3, 12, 3, |inner| {
        let simple = prop_oneof![
            inner.prop_map(Arg::Operand),
            number().prop_map(Arg::Literal),
            literal()
                .prop_filter("quoted", |l| l.quoted)
                .prop_map(Arg::Literal),
        ]
        .boxed();
        let list =
            prop::collection::vec(simple.clone(), 0..3).prop_map(|items| Arg::List(items, NOWHERE));
        let args = prop::collection::vec(prop_oneof![3 => simple, 1 => list], 1..3);
        (prop::sample::select(Transformer::ALL), args, bracket()).prop_map(
            |(transformer, args, arg)| {
                Operand::Call(Call {
                    transformer,
                    args,
                    arg,
                    span: NOWHERE,
                })
            },
        )
    })
}

fn list() -> impl Strategy<Value = Value> {
    prop_oneof![
        prop::collection::vec(literal(), 0..4).prop_map(|items| Value::List(items, NOWHERE)),
        identifier().prop_map(|name| Value::ListName(name, NOWHERE)),
    ]
}

fn compare() -> impl Strategy<Value = Compare> {
    let ops = (
        prop::sample::select(Op::ALL),
        prop::option::of(prop::sample::select(Quantifier::ALL)),
    );
    ops.prop_flat_map(|(op, quantifier)| {
        let quantifier = quantifier.filter(|_| op.class() == OpClass::String);
        let constant = match (quantifier, op.class()) {
            (Some(_), _) | (None, OpClass::List) => list().boxed(),
            (None, OpClass::Number) => number().prop_map(Value::Literal).boxed(),
            (None, OpClass::String) => literal().prop_map(Value::Literal).boxed(),
        };
        let right = match quantifier {
            Some(_) => constant,
            None => prop_oneof![2 => constant, 1 => operand().prop_map(Value::Operand)].boxed(),
        };
        (operand(), right).prop_map(move |(left, right)| Compare {
            left,
            op,
            quantifier,
            op_span: NOWHERE,
            right,
        })
    })
}

fn expr() -> impl Strategy<Value = Expr> {
    let leaf = prop_oneof![
        identifier().prop_map(ExprKind::Macro),
        operand().prop_map(ExprKind::Exists),
        compare().prop_map(ExprKind::Compare),
    ]
    .prop_map(|kind| Expr {
        kind,
        span: NOWHERE,
    });
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 2..4).prop_map(ExprKind::And),
            prop::collection::vec(inner.clone(), 2..4).prop_map(ExprKind::Or),
            inner.prop_map(|child| ExprKind::Not(Box::new(child))),
        ]
        .prop_map(|kind| Expr {
            kind,
            span: NOWHERE,
        })
    })
}

proptest! {
    #[test]
    fn printing_and_parsing_gives_the_same_tree(expr in expr()) {
        let text = expr.to_string();
        let parsed = parse(&text, SOURCE);
        prop_assert!(parsed.is_ok(), "{}: {}", text, parsed.unwrap_err());
        prop_assert_eq!(strip(parsed.unwrap()), expr, "{}", text);
    }

    #[test]
    fn any_text_is_parsed_or_refused_inside_its_bounds(text in "\\PC{0,60}") {
        if let Err(error) = parse(&text, SOURCE) {
            prop_assert!(usize::try_from(error.span.end).unwrap() <= text.len());
            prop_assert!(error.span.start <= error.span.end);
            prop_assert!(text.is_char_boundary(usize::try_from(error.span.start).unwrap()));
        }
    }

    #[test]
    fn fragments_in_any_order_are_parsed_or_refused(
        parts in prop::collection::vec(prop::sample::select(&[
            "a", "a.b", "and", "or", "not", "(", ")", " ", " ", "\n", "=", "in", "exists", "\"", "'",
            "\\", "[", "]", ",", "tolower(", "val(", "1", "0x", "oneof", "contains ", "\u{e9}", "\0",
            "<", ">=", "startswith anyof (",
        ][..]), 0..24),
    ) {
        let text = parts.concat();
        if let Ok(expr) = parse(&text, SOURCE) {
            let printed = expr.to_string();
            prop_assert_eq!(strip(ok(&printed)), strip(expr), "{} -> {}", text, printed);
        }
    }
}
