package main

import (
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// The credentials in the environment of a site with a bucket.
const (
	accessKey = "AKIAMILKWEEDTEST"
	secretKey = "streng-geheimer-schluessel"
)

// bucketPrefix is the prefix of the keys of the dataset. It has characters that are special in a
// shell, a URL, a mount option or a mount table.
const bucketPrefix = `set,1 \#?/`

// A bucket is a server for the part of the S3 protocol that a mount uses. Its bucket "data" has
// the files of the source of a site.
type bucket struct {
	*site
	*httptest.Server
	lists, gets atomic.Int64                     // requests
	unsigned    atomic.Int64                     // those without the access key
	refuse      atomic.Pointer[http.HandlerFunc] // if not nil, it answers all requests
	etag        func(fs.FileInfo) string
}

// newBucket starts the server, and puts credentials for it into the environment of the site.
func newBucket(s *site) *bucket {
	b := &bucket{site: s, etag: func(info fs.FileInfo) string { return fmt.Sprintf(`"%x"`, info.ModTime().UnixNano()) }}
	b.Server = httptest.NewServer(b)
	s.t.Cleanup(b.Server.Close)
	b.env = append(b.env, "AWS_ACCESS_KEY_ID="+accessKey, "AWS_SECRET_ACCESS_KEY="+secretKey, "AWS_SESSION_TOKEN=",
		"AWS_PROFILE=", "AWS_REGION=", "AWS_CONFIG_FILE=", "AWS_SHARED_CREDENTIALS_FILE=", "AWS_EC2_METADATA_DISABLED=true")
	return b
}

// at returns the URL of the dataset.
func (b *bucket) at() string {
	return (&url.URL{Scheme: "s3", Host: "data", Path: "/" + bucketPrefix, RawQuery: "region=eu-west-1&endpoint=" + b.URL}).String()
}

// name returns the name of the source in output: the URL without options.
func (b *bucket) name() string { return "s3://data/set,1%20%5C%23%3F?endpoint=" + b.URL }

// ServeHTTP implements http.Handler.
func (b *bucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	isList := r.URL.Query().Get("list-type") == "2"
	if isList {
		b.lists.Add(1)
	} else {
		b.gets.Add(1)
	}
	if !strings.Contains(r.Header.Get("Authorization"), "Credential="+accessKey+"/") {
		b.unsigned.Add(1)
	}
	switch answer := b.refuse.Load(); {
	case answer != nil:
		(*answer)(w, r)
	case isList:
		b.list(w, r.URL.Query())
	default:
		b.get(w, r)
	}
}

// The elements of a listing in S3.
type (
	listedKey struct {
		Key, ETag, LastModified string
		Size                    int64
	}
	listedPrefix struct{ Prefix string }
)

// list responds with all keys in one page.
func (b *bucket) list(w http.ResponseWriter, query url.Values) {
	page := struct {
		XMLName        xml.Name `xml:"ListBucketResult"`
		EncodingType   string
		Contents       []listedKey
		CommonPrefixes []listedPrefix
	}{EncodingType: "url"}
	encode := func(key string) string { return strings.ReplaceAll(url.QueryEscape(key), "%2F", "/") }
	prefix, delimiter := query.Get("prefix"), query.Get("delimiter")
	last := ""
	filepath.WalkDir(b.source, func(path string, d fs.DirEntry, err error) error { // in the order of names
		key := bucketPrefix + strings.TrimPrefix(path, b.source+"/")
		rest, isBelow := strings.CutPrefix(key, prefix)
		if err != nil || d.IsDir() || !isBelow {
			return err
		}
		if i := strings.Index(rest, delimiter); delimiter != "" && i >= 0 {
			if common := prefix + rest[:i+1]; common != last {
				last = common
				page.CommonPrefixes = append(page.CommonPrefixes, listedPrefix{encode(common)})
			}
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		page.Contents = append(page.Contents, listedKey{encode(key), b.etag(info), info.ModTime().UTC().Format(time.RFC3339), info.Size()})
		return nil
	})
	xml.NewEncoder(w).Encode(page)
}

// get responds with the content or a range of it, if the requested version is the current one.
func (b *bucket) get(w http.ResponseWriter, r *http.Request) {
	name, ok := strings.CutPrefix(r.URL.Path, "/data/"+bucketPrefix)
	f, err := os.Open(filepath.Join(b.source, name))
	if !ok || err != nil {
		refusal(http.StatusNotFound, "NoSuchKey")(w, r)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		refusal(http.StatusInternalServerError, "InternalError")(w, r)
		return
	}
	w.Header().Set("ETag", b.etag(info))
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", info.ModTime(), f) // it handles Range and If-Match
}

// refusal returns a handler that responds with an error.
func refusal(status int, code string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		fmt.Fprintf(w, "<Error><Code>%s</Code><Message>the message of the store</Message></Error>", code)
	}
}

// mountWords returns the arguments that mount the bucket.
func (b *bucket) mountWords(more ...string) []string {
	return append([]string{"mount", "--tier", "tier1:" + b.tier(1) + ":1GiB", b.at(), b.point}, more...)
}

// wantNoSecret fails the test if text or a file of the site, such as a log, has the secret key.
func (b *bucket) wantNoSecret(text string) {
	b.t.Helper()
	if strings.Contains(text, secretKey) {
		b.t.Errorf("output has the secret key:\n%s", text)
	}
	err := filepath.WalkDir(b.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || strings.HasPrefix(path, b.point+"/") {
			return err
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if strings.Contains(string(data), secretKey) {
			b.t.Errorf("%s has the secret key", path)
		}
		return err
	})
	b.check(err)
}

// A mount of a bucket takes one request, signed with the credentials of the environment. Each
// byte is read once. All output has the same name of the source.
func TestBucket(t *testing.T) {
	s := newSite(t)
	dataset := varied(s)
	b := newBucket(s)

	checked := s.milkweed("check", "--tier", "tier1:"+s.tier(1)+":1GiB", b.at(), s.point)
	for _, want := range []string{b.name() + " can be listed; credentials: access key " + accessKey, "the source is a bucket, which the kernel cannot read", "the objects of a bucket are not counted, which `milkweed warmup --dry-run` does"} {
		if !strings.Contains(checked, want) {
			t.Errorf("the output of check lacks %q:\n%s", want, checked)
		}
	}
	if got := b.lists.Load(); got != 1 {
		t.Errorf("check took %d requests for keys, want 1", got)
	}

	names := filepath.Join(s.dir, "names")
	s.milkweed(b.mountWords("-o", "metadata_snapshot="+names)...)
	if lists, gets := b.lists.Load(), b.gets.Load(); lists != 2 || gets != 0 {
		t.Errorf("the mount took %d requests for keys and %d for content, want 1 and 0", lists-1, gets)
	}
	mounts, err := control.Mounts()
	s.check(err)
	found := false
	for _, m := range mounts {
		found = found || m.Point == s.point && m.Source == b.at() // mount(8) compares it with fstab
	}
	if !found {
		t.Errorf("no mount of %s: %+v", b.at(), mounts)
	}

	s.epoch(1)
	status := s.settled()
	if status.Source.Path != b.name() || status.DatasetID != config.DatasetID(b.name()) || status.Placement.PlacedBytes != dataset {
		t.Errorf("got %s, %s, %d bytes placed; want %s, %s, %d", status.Source.Path, status.DatasetID, status.Placement.PlacedBytes,
			b.name(), config.DatasetID(b.name()), dataset)
	}
	r := status.Source.Requests
	if r == nil || r.Lists != b.lists.Load()-1 || r.Gets != b.gets.Load() || r.Bytes != dataset || r.Hidden != 0 {
		t.Errorf("got %+v; want %d list, %d get, %d bytes", r, b.lists.Load()-1, b.gets.Load(), dataset)
	}
	where := s.milkweed("where", s.point+"/class0/000.jpg")
	if want := filepath.Join(s.tier(1), status.DatasetID, "files/class0/000.jpg"); !strings.Contains(where, want) {
		t.Errorf("where: got %s, want %s", where, want)
	}
	s.epoch(2)
	b.wantNoSecret(checked + where + s.milkweed("status", s.point) + s.milkweed("status", "--json", s.point) + s.logs())
	s.umount()
	s.wantNothing()

	// A new mount uses the copies and the metadata snapshot.
	gets := b.gets.Load()
	s.milkweed(b.mountWords("-o", "metadata_snapshot="+names)...)
	s.epoch(3)
	if got := b.gets.Load(); got != gets {
		t.Errorf("the second mount took %d requests for content, want none", got-gets)
	}
	s.umount()
	s.wantNothing()
	b.wantNoSecret("")
	if got := b.unsigned.Load(); got != 0 {
		t.Errorf("%d requests without the access key", got)
	}
}

// A user without privileges mounts a bucket through fusermount3, and mount(8) mounts it by a
// line of fstab.
func TestBucketMounters(t *testing.T) {
	parallel(t)
	drivertest.Need(t, "fusermount3", "mount", "umount")
	wantMount := func(b *bucket) {
		t.Helper()
		if data := b.must("cat", b.point+"/f"); len(data) != 1000 {
			t.Errorf("got %d bytes, want 1000", len(data))
		}
		table, err := os.ReadFile(b.table)
		b.check(err)
		if want := " - fuse.milkweed " + b.at() + " "; !strings.Contains(string(table), want) {
			t.Errorf("got\n%s\nwithout %s", table, want)
		}
	}
	t.Run("user", func(t *testing.T) {
		s := newSite(t)
		s.write("f", 1000)
		s.write("d/f", 10)
		s.inNamespace(fuseForAll)
		b := newBucket(s)
		s.giveToNobody()
		s.milkweed(b.mountWords()...)
		wantMount(b)
		s.must("sh", "-ec", `cp -r "$1" "$2"; cd "$2"; touch f d/new; echo >>d/f; rm -r d; rm -r "$2"`, "sh", s.point, s.dir+"/run/copy")
		s.umount()
		s.wantNothing()
	})
	t.Run("fstab", func(t *testing.T) {
		s := newSite(t)
		s.write("f", 1000)
		s.inNamespace(`mount -t tmpfs none /sbin/ && ln -s "$2" /sbin/mount.milkweed`, s.program)
		b := newBucket(s)
		fstab := filepath.Join(s.dir, "fstab")
		s.check(os.WriteFile(fstab, []byte(b.at()+" "+s.point+" milkweed config="+s.config(4, `name = "ram"`)[2]+",_netdev 0 0\n"), 0o644))
		s.must("mount", "--fstab", fstab, s.point)
		wantMount(b)
		s.umount()
		s.wantNothing()
	})
}

// A bucket that cannot be used is an error with the message of the store and a remedy. Nothing is
// mounted.
func TestBucketRefused(t *testing.T) {
	s := newSite(t)
	s.write("f", 1000)
	b := newBucket(s)
	closed := httptest.NewServer(nil)
	closed.Close()
	profiles := s.dir + "/profiles"
	s.check(os.WriteFile(profiles, []byte("[mine]\naws_access_key_id = AKIAMINE\naws_secret_access_key = another\n"), 0o600))
	for _, tt := range []struct {
		name   string
		answer http.HandlerFunc
		url    string    // "" is that of the bucket
		env    []string  // added to that of the bucket
		code   exit.Code // 0 is exit.Source
		says   []string
	}{
		{name: "forbidden", answer: refusal(http.StatusForbidden, "AccessDenied"), says: []string{"AccessDenied: the message of the store", "anonymous=true"}},
		{name: "no bucket", answer: refusal(http.StatusNotFound, "NoSuchBucket"), says: []string{"NoSuchBucket: the message of the store", "names of the bucket"}},
		{name: "no keys", url: "s3://data/none?region=r&endpoint=" + b.URL, says: []string{"none", "names of the bucket"}},
		{name: "another region", answer: refusal(http.StatusMovedPermanently, "PermanentRedirect", "X-Amz-Bucket-Region", "eu-north-1"),
			says: []string{"eu-north-1", "region=REGION"}},
		{name: "no credentials", env: []string{"AWS_ACCESS_KEY_ID=", "AWS_SECRET_ACCESS_KEY="}, says: []string{"permission denied", "the vendor's own tools look"}},
		{name: "unknown profile", env: []string{"AWS_ACCESS_KEY_ID=", "AWS_SECRET_ACCESS_KEY=", "AWS_PROFILE=typo", "AWS_SHARED_CREDENTIALS_FILE=" + profiles},
			says: []string{`There is no profile "typo" in`, profiles}},
		{name: "unknown default profile", env: []string{"AWS_ACCESS_KEY_ID=", "AWS_SECRET_ACCESS_KEY=", "AWS_DEFAULT_PROFILE=typo", "AWS_SHARED_CREDENTIALS_FILE=" + profiles},
			says: []string{`There is no profile "typo" in`, profiles}},
		{name: "unknown profile in the URL", url: "s3://data?region=r&profile=typo&endpoint=" + b.URL, env: []string{"AWS_SHARED_CREDENTIALS_FILE=" + profiles},
			says: []string{`There is no profile "typo" in`, profiles}},
		{name: "wrong key", answer: refusal(http.StatusForbidden, "InvalidAccessKeyId"),
			says: []string{"InvalidAccessKeyId", "signed with access key " + accessKey + ", from the environment (AWS_ACCESS_KEY_ID)", "has no such access key"}},
		{name: "wrong key of a profile", answer: refusal(http.StatusForbidden, "SignatureDoesNotMatch"), url: "s3://data?region=r&profile=mine&endpoint=" + b.URL,
			env: []string{"AWS_SHARED_CREDENTIALS_FILE=" + profiles}, says: []string{`access key AKIAMINE, from the profile "mine" in ` + profiles, "secret key is not the one of the access key"}},
		{name: "expired token", answer: refusal(http.StatusBadRequest, "ExpiredToken"), says: []string{"ExpiredToken", "Renew the session token"}},
		{name: "wrong clock", answer: refusal(http.StatusForbidden, "RequestTimeTooSkewed", "Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat)),
			says: []string{"RequestTimeTooSkewed", "Set the clock of this machine: it is 1h0m", "ahead of that of the store"}},
		{name: "no permission", answer: refusal(http.StatusForbidden, "AccessDenied"), says: []string{"signed with access key " + accessKey, "s3:ListBucket"}},
		{name: "not public", answer: refusal(http.StatusForbidden, "AccessDenied"), url: "s3://data?region=r&anonymous=true&endpoint=" + b.URL,
			says: []string{"the request was not signed", "remove anonymous=true"}},
		{name: "no region", url: "s3://data", code: exit.Usage, says: []string{"no region is set", "Add the missing setting"}},
		{name: "TLS", url: "s3://data?region=r&endpoint=" + strings.Replace(b.URL, "http:", "https:", 1), says: []string{"http:// or https://"}},
		{name: "no server", url: "s3://data?region=r&endpoint=" + closed.URL, says: []string{"whether this machine reaches"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b.refuse.Store(nil)
			if tt.answer != nil {
				b.refuse.Store(&tt.answer)
			}
			words, before := b.mountWords(), s.env
			if tt.url != "" {
				words[3] = tt.url
			}
			s.env = append(s.env[:len(s.env):len(s.env)], tt.env...)
			defer func() { s.env = before }()
			for _, command := range []string{"mount", "check"} {
				if command == "check" && strings.HasSuffix(tt.url, closed.URL) {
					continue // it would retry for 5 seconds, in case the server starts
				}
				words[0] = command
				r := s.try(words...)
				if want := cmp.Or(tt.code, exit.Source); r.code != want {
					t.Errorf("%s: exit code %d, want %d", command, r.code, want)
				}
				for _, want := range append(tt.says, "source: s3://data") {
					if !strings.Contains(r.stderr, want) {
						t.Errorf("%s: got %s without %q", command, r.stderr, want)
					}
				}
				b.wantNoSecret(r.stdout + r.stderr)
			}
			s.wantNothing()
		})
	}
}
