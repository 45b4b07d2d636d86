package config

import (
	"fmt"
	"strings"
)

// lines maps each key and each heading of a file to its line number, which starts
// at 1. Its keys are like "mount", "mount.mode", "tier[0]" and "tier[0].quota".
type lines map[string]int

// of returns the line of a key. For a key within an inline table it returns the
// line on which that table begins.
func (l lines) of(key string) int {
	for {
		if n, ok := l[key]; ok {
			return n
		}
		i := strings.LastIndexAny(key, ".[")
		if i < 0 {
			return 1
		}
		key = key[:i]
	}
}

// scanLines returns the lines of the keys and headings in text, which must be
// valid TOML. For any other text the result is unspecified.
func scanLines(text string) lines {
	s := scanner{text: strings.TrimPrefix(text, "\ufeff"), line: 1}
	found := make(lines)
	lists := make(map[string]int) // the number of [[heading]] lines seen so far
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
			key := s.key()
			if prefix != "" {
				key = prefix + "." + key
			}
			found.add(key, line)
		}
		s.toNewline()
	}
	return found
}

// add records the line of a key. For a dotted key it also records the tables that
// the key implies. The first line of each key counts.
func (l lines) add(key string, line int) {
	for {
		if _, ok := l[key]; !ok {
			l[key] = line
		}
		i := strings.LastIndexByte(key, '.')
		if i < 0 {
			return
		}
		key = key[:i]
	}
}

// A scanner finds the keys and headings of a TOML file. It parses strings, lists
// and comments only so that it does not mistake their content for a key.
type scanner struct {
	text string // the text that follows the current position
	line int    // the line of the current position
}

// advance moves over n bytes.
func (s *scanner) advance(n int) {
	n = min(n, len(s.text))
	s.line += strings.Count(s.text[:n], "\n")
	s.text = s.text[n:]
}

// skip moves over prefix, and reports whether the text began with it.
func (s *scanner) skip(prefix string) bool {
	if !strings.HasPrefix(s.text, prefix) {
		return false
	}
	s.advance(len(prefix))
	return true
}

// toStatement moves to the next key or heading. It reports whether there is one.
func (s *scanner) toStatement() bool {
	for {
		s.advance(len(s.text) - len(strings.TrimLeft(s.text, " \t\r\n")))
		if !strings.HasPrefix(s.text, "#") {
			return s.text != ""
		}
		s.toNewline()
	}
}

// key moves over a dotted key and returns it without quotes and spaces.
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

// toNewline moves to the end of the statement. Strings, lists and inline tables in
// the statement may span several lines.
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

// quoted moves over a string that begins and ends with quote, and returns the
// string with its quotes. A multi-line string may end in up to five quotes: the
// last three are the delimiter, and the others belong to the string.
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
