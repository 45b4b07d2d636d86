package manifest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

const someSum = "c865f6c5ab8d1b0bcd383a5e1e3879d22681c96bf462c269b7581d523fbe70ab"

// parse returns the entries of a manifest, one on each line.
func parse(t *testing.T, text string) string {
	t.Helper()
	var b strings.Builder
	if _, err := decode(strings.NewReader(text), func(e Entry) error {
		fmt.Fprintf(&b, "%q %o", e.Name, e.Mode)
		if e.IsRegular() {
			fmt.Fprintf(&b, " %d %x", e.Size, e.SHA256[:2])
		}
		if !e.Mtime.IsZero() {
			fmt.Fprintf(&b, " %d", e.Mtime.UnixNano())
		}
		b.WriteString(e.Target + "\n")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// The two forms of mtree(5), as mtree(8) writes them, describe the same files.
func TestForms(t *testing.T) {
	const (
		tree = `#	   user: (null)

# .
/set type=file uid=0 gid=0 mode=0644 nlink=1 flags=none
.               type=dir mode=0755 nlink=3 time=1795490824.106952338
    back\\slash=x \
                size=2 time=1795490824.000000007 \
                sha256=` + someSum + `
    li\snk      type=link mode=0777 time=-5.0 link=a\sb
    p           type=fifo

# ./a b
/set type=file mode=0755
a\sb            type=dir nlink=3
c               type=dir mode=0700
    f\#1        size=3 sha256=` + someSum + `
# ./a b/c
..
/unset mode
..
\M-C\M-)    size=9 sha256=` + someSum + `
`
		paths = `#mtree
. type=dir mode=755 time=1795490824.106952338
./back\134slash\075x type=file mode=644 size=2 time=1795490824.7 sha256digest=` + someSum + `
./li\040nk type=link mode=777 link=a\040b time=-5
./p type=fifo mode=644
./a\040b type=dir mode=755
./a\040b/c type=dir mode=700
./a\040b/c/f\0431 type=file mode=755 size=3 sha256digest=` + someSum + `
./\303\251 type=file size=9 sha256digest=` + someSum + `
`
	)
	got, want := parse(t, tree), parse(t, paths)
	if got != want {
		t.Errorf("tree:\n%s\npaths:\n%s", got, want)
	}
	if want := `"back\\slash=x" 100644 2 c865 1795490824000000007` + "\n"; !strings.Contains(got, want) {
		t.Errorf("got\n%s\nwithout %s", got, want)
	}
}

func TestInvalid(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"./a type=file size=1", `line 1: "a": the keyword sha256 is missing`},
		{"#mtree\n\n./a type=file sha256=" + someSum, `line 3: "a": the keyword size is missing`},
		{"./a size=1 sha256=" + someSum, `line 1: "a": the keyword type is missing`},
		{"./a type=link", `line 1: "a": the keyword link is missing`},
		{"./a type=door", `line 1: "a": type=door: unknown type`},
		{"./a type=file size=-1", `line 1: "a": size=-1: `},
		{"./a type=file size=9223372036854775808", `line 1: "a": size=9223372036854775808: `},
		{"./a type=file size=1 sha256=12", `line 1: "a": sha256=12: not 64 hexadecimal digits`},
		{"./a type=file size=1 sha256=" + strings.Repeat("x", 64), `: encoding/hex: invalid byte`},
		{"./a type=dir mode=u+rw", `line 1: "a": mode=u+rw: not octal permissions`},
		{"./a type=dir mode=170000", `not octal permissions`},
		{"./a type=dir time=yesterday", `line 1: "a": time=yesterday: not seconds`},
		{"./a type=dir time=1.1000000000", `not seconds`},
		{"./a type=dir time=99999999999999", `not seconds`},
		{`./a\q type=dir`, `a backslash begins no sequence of vis(3)`},
		{`./a\`, `line 1: unexpected EOF`},
		{`/etc/passwd type=dir`, `line 1: "/etc/passwd" is neither a name below the root nor a command`},
		{`./../a type=dir`, `"../a" is not the name of a file below the root`},
		{`./a/../../b type=dir`, `is not the name of a file below the root`},
		{`\056\056 type=dir`, `".." is not the name of a file below the root`},
		{`./a//b type=dir`, `is not the name of a file below the root`},
		{`./a\000b type=dir`, `is not the name of a file below the root`},
		{"./" + strings.Repeat("a/", 2100) + "b type=dir", `is not the name of a file below the root`},
		{"./" + strings.Repeat("a", maxLine), `line 1: bufio.Scanner: token too long`},
		{"./a type=dir \\\n" + strings.Repeat("x \\\n", maxLine/2), `token too long`},
		{"./a type=dir\n./a type=dir", `"a" occurs twice`},
		{"./a type=dir\n./a type=fifo", `"a" occurs twice`},
		{"./a type=fifo\n./a/b type=fifo", `"a" occurs twice`},
		{"./d/a type=fifo\n./b type=fifo\n./d/a type=fifo", `"d/a" occurs twice`},
		{". type=file size=1 sha256=" + someSum, `the root is not a directory`},
	} {
		if m, err := Load(strings.NewReader(test.text)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%.80q: got %v, %v; want an error with %s", test.text, m, err, test.want)
		}
	}
}

// names are hostile, and valid.
var names = []string{
	"a", "sp ace", "new\nline", "tab\t", `back\slash`, "#hash", "a=b", "/set"[1:], "caf\xe9", "é", "\x7f", "\x01", "*?[", "..a", "\\", `"q"`,
	strings.Repeat("\xff", 255),
}

// What Write writes, Load reads.
func TestRoundTrip(t *testing.T) {
	var want []Entry
	add := func(e Entry) { want = append(want, e) }
	add(Entry{Name: ".", Mode: syscall.S_IFDIR | 0o750, Mtime: time.Unix(1<<33, 1)})
	slices.Sort(names)
	for i, name := range names {
		add(Entry{Name: name, Mode: syscall.S_IFREG | uint32(i), Size: int64(i), Mtime: time.Unix(-int64(i), 5), SHA256: [32]byte{byte(i)}})
	}
	for _, name := range names {
		add(Entry{Name: "dir" + name, Mode: syscall.S_IFDIR | 0o7777})
		add(Entry{Name: "dir" + name + "/link", Mode: syscall.S_IFLNK | 0o777, Target: "../" + name, Mtime: time.Unix(3, 4)})
		add(Entry{Name: "dir" + name + "/pipe", Mode: syscall.S_IFIFO | 0o600, Mtime: time.Unix(3, 4)})
	}
	byName := func(e []Entry) { slices.SortFunc(e, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) }) }
	var b bytes.Buffer
	w := NewWriter(&b)
	for _, e := range want {
		if err := w.Write(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	m, err := Load(bytes.NewReader(b.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	got := slices.Collect(m.All())
	byName(got)
	byName(want)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%v\nwant\n%v", got, want)
	}
	for _, e := range want {
		if got, ok := m.Lookup(e.Name); !ok || got != e {
			t.Errorf("Lookup(%q) returns %v, %v", e.Name, got, ok)
		}
	}
	for _, name := range []string{"nosuch", "dira/nosuch", "a/b", "dir"} {
		if e, ok := m.Lookup(name); ok {
			t.Errorf("Lookup(%q) returns %v", name, e)
		}
	}
	if m.Files != int64(len(names)) || m.Sum != sha256.Sum256(b.Bytes()) {
		t.Errorf("%d files, SHA-256 %x", m.Files, m.Sum)
	}
}

// mtree(8) and bsdtar(1) read what Write has written, and Load reads what they have.
func TestOtherPrograms(t *testing.T) {
	dir := t.TempDir()
	for i, name := range names {
		path := filepath.Join(dir, "d"+fmt.Sprint(i%3), "sub", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, bytes.Repeat([]byte{byte(i)}, 1000*i), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("sp ace", dir+"/link to"); err != nil {
		t.Fatal(err)
	}
	drivertest.Need(t, "bsdtar", "mtree")
	run := func(words ...string) []byte {
		t.Helper()
		c := exec.Command(words[0], words[1:]...)
		c.Dir = dir
		c.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
		var out, problem bytes.Buffer
		c.Stdout, c.Stderr = &out, &problem
		if err := c.Run(); err != nil {
			t.Fatalf("%v: %v\n%s%s", words, err, out.String(), problem.String())
		}
		return out.Bytes()
	}
	var first []Entry
	for _, words := range [][]string{
		{"bsdtar", "-cf", "-", "--format=mtree", "--options=!all,sha256,size,type,time,link,mode", "."},
		{"mtree", "-c", "-k", "sha256,size,time,type,link,mode", "-p", "."},
	} {
		m, err := Load(bytes.NewReader(run(words...)))
		if err != nil {
			t.Errorf("%v: %v", words, err)
			continue
		}
		all := slices.Collect(m.All())
		if first == nil {
			first = all
		}
		if !slices.Equal(all, first) || m.Files != int64(len(names)) {
			t.Errorf("%v: got\n%v\nwant\n%v", words, all, first)
		}
	}
	var b bytes.Buffer
	w := NewWriter(&b)
	for _, e := range first {
		if err := w.Write(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "manifest.mtree")
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	run("mtree", "-f", file, "-p", ".")
	if got := bytes.Count(run("bsdtar", "-tf", file), []byte("\n")); got != len(first) {
		t.Errorf("bsdtar lists %d of %d names", got, len(first))
	}
}

// A written manifest that is cut at any byte, or that has more or other bytes, is refused, and the error says
// that it is damaged.
func TestDamaged(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	for _, e := range []Entry{
		{Name: ".", Mode: syscall.S_IFDIR | 0o755},
		{Name: "a", Mode: syscall.S_IFREG | 0o644, Size: 7},
		{Name: "b", Mode: syscall.S_IFLNK | 0o777, Target: "a"},
	} {
		if err := w.Write(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	whole := b.String()
	m, err := Load(strings.NewReader(whole))
	if err != nil || m.Unsealed || m.Names != 3 {
		t.Fatalf("the whole one: %v, %+v", err, m)
	}
	if last := whole[strings.LastIndex(strings.TrimSuffix(whole, "\n"), "\n")+1:]; !strings.HasPrefix(last, "# milkweed: end, 3 entries, sha256 ") {
		t.Errorf("the last line is %q", last)
	}
	refused := func(what, text string, want error) {
		t.Helper()
		if m, err := Load(strings.NewReader(text)); !errors.Is(err, want) {
			t.Errorf("%s: got %v, %v; want %v", what, m, err, want)
		}
	}
	begun := strings.Index(whole, beginLine) + len(beginLine)
	for n := range len(whole) {
		want := ErrDamaged
		if n < begun {
			want = errNoNames
		}
		refused(fmt.Sprintf("cut at %d", n), whole[:n], want)
	}
	refused("twice", whole+whole, ErrDamaged)
	refused("a line more", whole+"\n", ErrDamaged)
	refused("a line before", "./z type=fifo\n"+whole, ErrDamaged)
	refused("without its first lines", whole[begun:], ErrDamaged)
	refused("edited", strings.Replace(whole, "size=7", "size=8", 1), ErrDamaged)
	refused("a line less", strings.Replace(whole, "./b type=link mode=0777 link=a\n", "", 1), ErrDamaged)
}

// A manifest that another program has written has no end: it is read, and Unsealed is set. It is refused if it
// has no names.
func TestUnsealed(t *testing.T) {
	m, err := Load(strings.NewReader("#mtree\n. type=dir\n./a type=fifo\n"))
	if err != nil || !m.Unsealed || m.Names != 2 {
		t.Errorf("got %v, %+v", err, m)
	}
	for _, text := range []string{"", "#mtree\n", "/set type=file\n\n# end\n"} {
		if m, err := Load(strings.NewReader(text)); !errors.Is(err, errNoNames) {
			t.Errorf("%q: got %v, %v", text, m, err)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add("#mtree\n" + beginLine + ". type=dir\n" + endPrefix + "1 entries, sha256 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\n")
	f.Add("#mtree\n. type=dir\n./a type=file size=1 time=1.5 mode=644 sha256=" + someSum + "\n")
	f.Add("/set type=file mode=0644\n. type=dir\n  a\\040b size=2 \\\n sha256=" + someSum + "\n sub type=dir\n x type=link link=\\M-C\\^A\n..\n/unset all\n")
	f.Add("./a type=fifo\n/unset type\n./b/c type=dir")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := Load(strings.NewReader(text))
		if err != nil {
			return
		}
		var b bytes.Buffer
		w := NewWriter(&b)
		for e := range m.All() {
			if err := w.Write(e); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		again, err := Load(&b)
		if err != nil {
			t.Fatalf("%v, of\n%s", err, b.String())
		}
		if x, y := slices.Collect(m.All()), slices.Collect(again.All()); !slices.Equal(x, y) {
			t.Errorf("got\n%v\nwant\n%v", y, x)
		}
	})
}

func BenchmarkLoad(b *testing.B) {
	const files = 1_000_000
	var text bytes.Buffer
	w := NewWriter(&text)
	for i := range files {
		if err := w.Write(Entry{
			Name: fmt.Sprintf("train/n%08d/n%08d_%d.JPEG", i/1000, i/1000, i), Mode: syscall.S_IFREG | 0o644,
			Size: int64(i), Mtime: time.Unix(1<<30, int64(i)), SHA256: sha256.Sum256([]byte{byte(i)}),
		}); err != nil {
			b.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := Load(bytes.NewReader(text.Bytes())); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/million-files")
}
