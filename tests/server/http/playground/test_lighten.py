"""Comments and spaces that are not sent."""

from server.http.playground.lighten import lighten


def test_comments_indentation_and_needless_spaces_are_not_sent_and_lines_keep_their_numbers() -> None:
    text = "/**\n * Why.\n */\nimport a;\n\n  /* one */ x = 'a // b';\n  // two\n  y /* three */ = `*/`;\n"
    assert lighten(text) == "\n\n\nimport a;\n\nx = 'a // b';\n\ny /* three */ = `*/`;\n"
    text = 'f( a, "b , c" ) ; // it\'s so\nconst { x } = y;\nr = /a , b/; // why\n'
    assert lighten(text) == 'f(a,"b , c");\nconst{x}=y;\nr = /a , b/;\n'
    assert lighten("a { b: c }\n", is_script=False) == "a { b: c }\n"
