package manifest

import (
	"errors"
	"strings"
)

// errVis is the error of unvis.
var errVis = errors.New("a backslash begins no sequence of vis(3)")

// appendVis appends a name in the encoding of libarchive: a byte that is not a visible ASCII character,
// or that has a meaning in the format, is a backslash and three octal digits.
func appendVis(b []byte, name string) []byte {
	for _, c := range []byte(name) {
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`\#=*?["`, c) >= 0 {
			b = append(b, '\\', '0'+c>>6, '0'+c>>3&7, '0'+c&7)
			continue
		}
		b = append(b, c)
	}
	return b
}

// escapes are the sequences of one character after the backslash that stand for another one.
var escapes = map[byte]byte{
	'a': '\a', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 's': ' ', 't': '\t', 'v': '\v', 'E': 0x1b, '0': 0,
}

// unvis decodes a name in any encoding of vis(3).
func unvis(s string) (string, error) {
	if strings.IndexByte(s, '\\') < 0 {
		return s, nil
	}
	b := make([]byte, 0, len(s))
	for s != "" {
		if s[0] != '\\' {
			b = append(b, s[0])
			s = s[1:]
			continue
		}
		c, n, ok := escape(s[1:])
		if !ok {
			return "", errVis
		}
		b = append(b, c)
		s = s[1+n:]
	}
	return string(b), nil
}

// escape decodes the sequence that follows a backslash, and returns its length.
func escape(s string) (c byte, n int, ok bool) {
	isOctal := func(i int) bool { return i < len(s) && '0' <= s[i] && s[i] <= '7' }
	switch {
	case s == "":
		return 0, 0, false
	case isOctal(0) && isOctal(1) && isOctal(2) && s[0] <= '3':
		return (s[0]-'0')<<6 | (s[1]-'0')<<3 | (s[2] - '0'), 3, true
	case s[0] == '^' && len(s) > 1:
		return control(s[1]), 2, true
	case s[0] == 'M' && len(s) > 2 && s[1] == '-':
		return s[2] | 0x80, 3, true
	case s[0] == 'M' && len(s) > 2 && s[1] == '^':
		return control(s[2]) | 0x80, 3, true
	}
	if c, ok := escapes[s[0]]; ok {
		return c, 1, true
	}
	isAlphanumeric := 'a' <= s[0] && s[0] <= 'z' || 'A' <= s[0] && s[0] <= 'Z' || '0' <= s[0] && s[0] <= '9'
	return s[0], 1, !isAlphanumeric
}

// control returns the control character that ^c stands for.
func control(c byte) byte {
	if c == '?' {
		return 0x7f
	}
	return c & 0x1f
}
