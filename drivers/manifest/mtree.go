package manifest

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// An Entry describes one name.
type Entry struct {
	Name   string            // as package drivers defines names
	Mode   uint32            // type and permissions, as st_mode of stat(2)
	Size   int64             // bytes of a regular file
	Mtime  time.Time         // the zero Time if the manifest has none
	Target string            // of a symbolic link
	SHA256 [sha256.Size]byte // of the content of a regular file
}

// info returns the type of the entry, for its methods.
func (e *Entry) info() drivers.Info { return drivers.Info{Mode: e.Mode} }

// IsRegular reports whether the entry is a regular file.
func (e *Entry) IsRegular() bool { return e.info().IsRegular() }

// IsDir reports whether the entry is a directory.
func (e *Entry) IsDir() bool { return e.info().IsDir() }

// IsSymlink reports whether the entry is a symbolic link.
func (e *Entry) IsSymlink() bool { return e.info().IsSymlink() }

// types maps the values of the keyword type to the type in Entry.Mode.
var types = map[string]uint32{
	"file": syscall.S_IFREG, "dir": syscall.S_IFDIR, "link": syscall.S_IFLNK, "fifo": syscall.S_IFIFO,
	"socket": syscall.S_IFSOCK, "block": syscall.S_IFBLK, "char": syscall.S_IFCHR,
}

// The permissions of entries without the keyword mode, those of a bucket.
const (
	defaultFileMode = 0o644
	defaultDirMode  = 0o755
)

// maxLine is the length in bytes of the longest line of a manifest, with its continuations. A path of
// 4,096 bytes takes 16,384 in the encoding of vis(3).
const maxLine = 1 << 16

// decode calls each for the entries of a manifest in the format of mtree(5), in their order, and returns what
// it has read. It accepts both forms, that with the full path in each line and that with a directory above
// its files, and ignores keywords that it does not need. A regular file must have its size and its SHA-256.
// decode stops at the first error, which has the number of the line, or is that of each.
func decode(r io.Reader, each func(Entry) error) (*seal, error) {
	s := newSeal()
	p := parser{dir: "."}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	lines.Split(wholeLines)
	number := 0
	var joined []byte // of lines that end in a backslash
	for lines.Scan() {
		number++
		if err := s.read(lines.Bytes()); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		line := bytes.TrimSpace(lines.Bytes())
		if rest, continues := bytes.CutSuffix(line, []byte(`\`)); continues && !bytes.HasPrefix(line, []byte("#")) {
			joined = append(append(joined, rest...), ' ')
			if len(joined) > maxLine {
				return nil, fmt.Errorf("line %d: %w", number, bufio.ErrTooLong)
			}
			continue
		}
		if len(joined) > 0 {
			line = append(joined, line...)
		}
		e, ok, err := p.line(string(line))
		joined = joined[:0]
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if ok {
			s.entries++
			if err := each(e); err != nil {
				return nil, err
			}
		}
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return nil, fmt.Errorf("line %d: %w", number+1, err)
	} else if err != nil {
		return nil, err
	}
	if len(joined) > 0 {
		return nil, fmt.Errorf("line %d: %w", number, io.ErrUnexpectedEOF)
	}
	return s, s.close()
}

// wholeLines is bufio.ScanLines, and leaves the newline at the end of a line.
func wholeLines(data []byte, atEOF bool) (advance int, token []byte, err error) {
	advance, token, err = bufio.ScanLines(data, atEOF)
	if token != nil {
		token = data[:advance]
	}
	return advance, token, err
}

// A parser is the state between two lines.
type parser struct {
	dir      string   // that holds names without a slash
	defaults []string // of /set, such as "type=file"
}

// line parses one line. It reports false if that is no entry.
func (p *parser) line(line string) (Entry, bool, error) {
	words := strings.Fields(line)
	switch {
	case len(words) == 0 || words[0][0] == '#':
		return Entry{}, false, nil
	case words[0] == "/set":
		p.unset(words[1:])
		p.defaults = append(p.defaults, words[1:]...)
		return Entry{}, false, nil
	case words[0] == "/unset":
		p.unset(words[1:])
		return Entry{}, false, nil
	case words[0] == "..":
		p.dir = path.Dir(p.dir)
		return Entry{}, false, nil
	case words[0][0] == '/':
		return Entry{}, false, fmt.Errorf("%q is neither a name below the root nor a command", words[0])
	}
	e, err := p.entry(words[0], words[1:])
	return e, err == nil, err
}

// unset removes the defaults of keywords, which may have values.
func (p *parser) unset(keywords []string) {
	for _, word := range keywords {
		keyword, _, _ := strings.Cut(word, "=")
		kept := p.defaults[:0]
		for _, d := range p.defaults {
			if !strings.HasPrefix(d, keyword+"=") && keyword != "all" {
				kept = append(kept, d)
			}
		}
		p.defaults = kept
	}
}

// entry parses the words of an entry.
func (p *parser) entry(encoded string, words []string) (Entry, error) {
	name, err := unvis(encoded)
	if err != nil {
		return Entry{}, fmt.Errorf("%q: %w", encoded, err)
	}
	isPath := strings.Contains(name, "/")
	switch {
	case isPath:
		name = strings.TrimPrefix(name, "./")
	case name != "." && p.dir != ".":
		name = p.dir + "/" + name
	}
	if !drivers.ValidName(name) || len(name) >= syscall.PathMax {
		return Entry{}, fmt.Errorf("%q is not the name of a file below the root", name)
	}
	e, err := parseKeywords(p.defaults, words)
	if err != nil {
		return Entry{}, fmt.Errorf("%q: %w", name, err)
	}
	e.Name = name
	if e.IsDir() && !isPath {
		p.dir = name
	}
	return e, nil
}

// parseKeywords parses the keywords of an entry; later ones replace earlier ones.
func parseKeywords(defaults, words []string) (e Entry, err error) {
	var kind, mode uint32
	var hasMode, hasSize, hasSum bool
	for _, list := range [...][]string{defaults, words} {
		for _, word := range list {
			keyword, value, _ := strings.Cut(word, "=")
			switch keyword {
			case "type":
				if kind = types[value]; kind == 0 {
					err = errors.New("unknown type")
				}
			case "mode":
				mode, err = parseMode(value)
				hasMode = true
			case "size":
				var n uint64
				n, err = strconv.ParseUint(value, 10, 63)
				e.Size, hasSize = int64(n), true
			case "time":
				e.Mtime, err = parseTime(value)
			case "link":
				e.Target, err = unvis(value)
			case "sha256", "sha256digest":
				e.SHA256, err = parseSum(value)
				hasSum = true
			}
			if err != nil {
				return e, fmt.Errorf("%s=%s: %w", keyword, value, err)
			}
		}
	}
	switch {
	case kind == 0:
		return e, errors.New("the keyword type is missing")
	case kind == syscall.S_IFREG && !hasSize:
		return e, errors.New("the keyword size is missing")
	case kind == syscall.S_IFREG && !hasSum:
		return e, errors.New("the keyword sha256 is missing")
	case kind == syscall.S_IFLNK && e.Target == "":
		return e, errors.New("the keyword link is missing")
	case hasMode:
	case kind == syscall.S_IFDIR:
		mode = defaultDirMode
	default:
		mode = defaultFileMode
	}
	if kind != syscall.S_IFREG {
		e.Size, e.SHA256 = 0, [sha256.Size]byte{}
	}
	if kind != syscall.S_IFLNK {
		e.Target = ""
	}
	e.Mode = kind | mode
	return e, nil
}

func parseMode(value string) (uint32, error) {
	n, err := strconv.ParseUint(value, 8, 12)
	if err != nil {
		return 0, errors.New("not octal permissions")
	}
	return uint32(n), nil
}

// parseTime parses seconds and, after a dot, nanoseconds.
func parseTime(value string) (time.Time, error) {
	seconds, fraction, _ := strings.Cut(value, ".")
	s, err := strconv.ParseInt(seconds, 10, 64)
	var n uint64
	if err == nil && fraction != "" {
		n, err = strconv.ParseUint(fraction, 10, 32)
	}
	if err != nil || n >= 1e9 || s < -maxSeconds || s > maxSeconds {
		return time.Time{}, errors.New("not seconds and nanoseconds since 1970")
	}
	return time.Unix(s, int64(n)), nil
}

// maxSeconds is far after all times of files, and can be converted to a time.Time and back.
const maxSeconds = 1 << 40

func parseSum(value string) (sum [sha256.Size]byte, err error) {
	if len(value) != hex.EncodedLen(len(sum)) {
		return sum, errors.New("not 64 hexadecimal digits")
	}
	_, err = hex.Decode(sum[:], []byte(value))
	return sum, err
}

// A Writer writes a manifest. Its methods are not concurrent.
type Writer struct {
	w    *bufio.Writer
	seal *seal
	line []byte
}

// NewWriter returns a Writer that has written the first lines to w.
func NewWriter(w io.Writer) *Writer {
	m := &Writer{w: bufio.NewWriter(w), seal: newSeal()}
	m.write([]byte("#mtree\n" + beginLine)) // Close returns the error
	return m
}

func (w *Writer) write(line []byte) error {
	w.seal.hash.Write(line)
	_, err := w.w.Write(line)
	return err
}

// Write writes an entry on a line of its own.
func (w *Writer) Write(e Entry) error {
	b := w.line[:0]
	if e.Name != "." {
		b = append(b, "./"...)
	}
	b = appendVis(b, e.Name)
	b = append(b, " type="...)
	for word, kind := range types {
		if kind == e.Mode&syscall.S_IFMT {
			b = append(b, word...)
		}
	}
	b = fmt.Appendf(b, " mode=%04o", e.Mode&^syscall.S_IFMT)
	if !e.Mtime.IsZero() {
		b = fmt.Appendf(b, " time=%d.%09d", e.Mtime.Unix(), e.Mtime.Nanosecond())
	}
	switch {
	case e.IsRegular():
		b = fmt.Appendf(b, " size=%d sha256digest=%x", e.Size, e.SHA256)
	case e.IsSymlink():
		b = appendVis(append(b, " link="...), e.Target)
	}
	w.line = append(b, '\n')
	w.seal.entries++
	return w.write(w.line)
}

// Close writes the last line, and what is buffered. It does not close the io.Writer.
func (w *Writer) Close() error {
	w.w.Write(w.seal.end()) // Flush returns the error
	return w.w.Flush()
}
