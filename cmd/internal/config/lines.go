package config

import (
	"fmt"
	"strings"
)

// lines is the line, counted from 1, on which each key and each heading of a
// file stands: "mount", "mount.mode", "tier[0]", "tier[0].quota".
type lines map[string]int

// of returns the line of a key. What is written within an inline table stands,
// as far as we know, where that table begins.
func (l lines) of(full string) int {
	for {
		if n, ok := l[full]; ok {
			return n
		}
		i := strings.LastIndexAny(full, ".[")
		if i < 0 {
			return 1
		}
		full = full[:i]
	}
}

// scanLines finds the lines in text that is valid TOML; of any other it
// returns something.
func scanLines(text string) lines {
	s := scanner{text: strings.TrimPrefix(text, "\ufeff"), line: 1}
	found := make(lines)
	lists := make(map[string]int) // how many [[heading]] there were
	prefix := ""
	for s.toStatement() {
		line := s.line
		switch {
		case s.skip("[["):
			table := s.key()
			prefix = fmt.Sprintf("%s[%d]", table, lists[table])
			lists[table]++
			found.add(prefix, line)
		case s.skip("["):
			prefix = s.key()
			found.add(prefix, line)
		default:
			full := s.key()
			if prefix != "" {
				full = prefix + "." + full
			}
			found.add(full, line)
		}
		s.toNewline()
	}
	return found
}

// add notes a key and, for a dotted one, the tables that it implies.
func (l lines) add(full string, line int) {
	for {
		if _, ok := l[full]; !ok {
			l[full] = line
		}
		i := strings.LastIndexByte(full, '.')
		if i < 0 {
			return
		}
		full = full[:i]
	}
}

// A scanner walks through TOML and knows as much of it as it takes not to
// mistake the inside of a string or a list for a key.
type scanner struct {
	text string // what is left
	line int
}

// advance moves over n bytes.
func (s *scanner) advance(n int) {
	n = min(n, len(s.text))
	s.line += strings.Count(s.text[:n], "\n")
	s.text = s.text[n:]
}

func (s *scanner) skip(prefix string) bool {
	if !strings.HasPrefix(s.text, prefix) {
		return false
	}
	s.advance(len(prefix))
	return true
}

// toStatement moves to the next key or heading, and reports whether there is
// one.
func (s *scanner) toStatement() bool {
	for {
		s.advance(len(s.text) - len(strings.TrimLeft(s.text, " \t\r\n")))
		if !strings.HasPrefix(s.text, "#") {
			return s.text != ""
		}
		s.toNewline()
	}
}

// key moves over a dotted key and returns it without quotes and blanks.
func (s *scanner) key() string {
	var b strings.Builder
	for s.text != "" {
		switch c := s.text[0]; c {
		case '=', ']', '\n':
			return b.String()
		case ' ', '\t':
			s.advance(1)
		case '"', '\'':
			quoted := s.quoted(s.text[:1])
			b.WriteString(strings.Trim(quoted, string(c)))
		default:
			b.WriteByte(c)
			s.advance(1)
		}
	}
	return b.String()
}

// toNewline moves to the end of a statement, over strings, lists and inline
// tables that have several lines.
func (s *scanner) toNewline() {
	depth := 0
	for s.text != "" {
		switch c := s.text[0]; c {
		case '\n':
			if depth <= 0 {
				return
			}
			s.advance(1)
		case '#':
			if end := strings.IndexByte(s.text, '\n'); end >= 0 {
				s.advance(end)
			} else {
				s.advance(len(s.text))
			}
		case '"', '\'':
			quote := strings.Repeat(string(c), 3)
			if !strings.HasPrefix(s.text, quote) {
				quote = string(c)
			}
			s.quoted(quote)
		case '[', '{':
			depth++
			s.advance(1)
		case ']', '}':
			depth--
			s.advance(1)
		default:
			s.advance(1)
		}
	}
}

// quoted moves over a string between two times quote, and returns it with
// both. Of five quotes that end a string of several lines the first two are
// part of it.
func (s *scanner) quoted(quote string) string {
	i := len(quote)
	for i < len(s.text) && !strings.HasPrefix(s.text[i:], quote) {
		if s.text[i] == '\\' && quote[0] == '"' {
			i++
		}
		i++
	}
	i += len(quote)
	for len(quote) == 3 && i < len(s.text) && s.text[i] == quote[0] {
		i++
	}
	i = min(i, len(s.text))
	whole := s.text[:i]
	s.advance(i)
	return whole
}
