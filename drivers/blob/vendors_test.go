package blob

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// A refused request is retried once, and not if it is not signed.
func TestRefusedOnce(t *testing.T) {
	var n atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.Add(1)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	t.Cleanup(server.Close)
	t.Setenv("AZURE_STORAGE_KEY", "c2VjcmV0")
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	for url, want := range map[string]int64{
		"azblob://b?account=a&endpoint=": 2, "azblob://b?account=a&anonymous=true&endpoint=": 1,
		"gs://b?anonymous=true&endpoint=": 1, "s3://b?anonymous=true&endpoint=": 1, "s3://b?endpoint=": 2,
	} {
		n.Store(0)
		l, err := Parse(url + server.URL)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), l, nil); !errors.Is(err, syscall.EACCES) || n.Load() != want {
			t.Errorf("%s: got error %v after %d requests, want %d", url, err, n.Load(), want)
		}
	}
}

// The driver follows no redirects, and so sends no signature to another host.
func TestRedirectsAreNotFollowed(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("a redirect was followed, with Authorization %q", r.Header.Get("Authorization"))
	}))
	t.Cleanup(other.Close)
	applicationDefault(t, other.URL+"/none")
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	server := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusFound))
	t.Cleanup(server.Close)
	t.Setenv("AZURE_STORAGE_SAS_TOKEN", "sp=r&sig=secret")
	for _, url := range []string{"gs://b?anonymous=true&endpoint=", "s3://b?endpoint=", "azblob://b?account=a&endpoint="} {
		l, err := Parse(url + server.URL)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), l, nil); err == nil {
			t.Errorf("%s: Open succeeds", url)
		}
	}
}

// The driver trusts the certificates of AWS_CA_BUNDLE, and still uses HTTP/1.1.
func TestCertificatesOfTheEnvironment(t *testing.T) {
	s := newStore(t, 1000)
	server := httptest.NewUnstartedServer(s)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_CA_BUNDLE", file)
	s.Server.URL = server.URL
	if got, err := readAll(s.open(t, "").object(t)); err != nil || !bytes.Equal(got, s.data) {
		t.Errorf("got error %v, or wrong data", err)
	}
}

// Transient errors of a server that issues credentials are retried.
func TestCredentialsThatCome(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the pauses between requests")
	}
	var failures atomic.Int64
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if failures.Add(-1) >= 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintf(w, `{"AccessKeyId":"id","SecretAccessKey":"secret","Token":"t","Expiration":%q}`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	}))
	t.Cleanup(endpoint.Close)
	s := newStore(t, 1000)
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	t.Setenv("AWS_CONFIG_FILE", "/dev/null")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", endpoint.URL)
	b := s.open(t, "")
	o := b.object(t)
	setReadRetries(t, retryPolicy{firstBackoff: time.Millisecond, maxBackoff: 5 * time.Millisecond, timeout: time.Minute})
	failures.Store(5)
	b.vendor.refreshCredentials(time.Now())
	if _, err := readAll(o); err != nil {
		t.Errorf("transient failure of the server: got error %v", err)
	}
}

// Endpoint and account, which identify the dataset, must be in the URL. Those of the
// environment are rejected.
func TestEnvironmentDoesNotSelectDataset(t *testing.T) {
	t.Setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
	t.Setenv("AWS_REGION", "eu-west-1")
	t.Setenv("AZURE_STORAGE_ACCOUNT", "vision")
	t.Setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:1")
	for url, want := range map[string]string{"s3://b": "add endpoint= to the URL", "gs://b?anonymous=true": "STORAGE_EMULATOR_HOST names an endpoint: add endpoint= to the URL", "azblob://b": "names the storage account vision: add account= to the URL"} {
		l, err := Parse(url)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), l, nil); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %q", url, err, want)
		}
	}
	t.Setenv("STORAGE_EMULATOR_HOST", "")
	t.Setenv("GOOGLE_CLOUD_UNIVERSE_DOMAIN", "example.org")
	if _, err := Open(t.Context(), Location{Scheme: "gs", Bucket: "b", Anonymous: true}, nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("another universe of Google: got error %v", err)
	}
}

// Listings that deviate from Amazon's are accepted.
func TestUnusualListings(t *testing.T) {
	var pages atomic.Int64
	for _, tt := range []struct {
		name string
		page func() string
		want []string
	}{
		{"no times", func() string { return `<Contents><Key>a</Key><Size>1</Size></Contents>` }, []string{"a"}},
		{"not UTF-8", func() string {
			return `<EncodingType>url</EncodingType><Contents><Key>a%FFb</Key></Contents><Contents><Key>c</Key></Contents>`
		}, []string{"c"}},
		{"keys that look escaped", func() string {
			return `<Contents><Key>a</Key></Contents><Contents><Key>a__0x21__</Key></Contents><CommonPrefixes><Prefix>a/</Prefix></CommonPrefixes>`
		}, []string{"a/", "a__0x21__"}},
		{"short pages", func() string {
			n := pages.Add(1)
			time.Sleep(20 * time.Millisecond)
			if n == 30 {
				return fmt.Sprintf(`<Contents><Key>%02d</Key></Contents>`, n)
			}
			return fmt.Sprintf(`<Contents><Key>%02d</Key></Contents><IsTruncated>true</IsTruncated><NextContinuationToken>%d</NextContinuationToken>`, n, n)
		}, numbers(30)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStore(t, 1)
			b := s.open(t, "")
			b.stallTimeout = 500 * time.Millisecond // shorter than the short pages together
			s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if p := r.URL.Query().Get("prefix"); p != "" && p != "a\xffb" {
					io.WriteString(w, "<ListBucketResult><Name>bucket</Name></ListBucketResult>")
					return
				}
				io.WriteString(w, "<ListBucketResult>"+tt.page()+"</ListBucketResult>")
			})
			infos, err := b.ReadDir(t.Context(), ".")
			var got []string
			for _, i := range infos {
				name := i.Name
				if i.IsDir() {
					name += "/"
				}
				got = append(got, name)
			}
			slices.Sort(got)
			if err != nil || !slices.Equal(got, tt.want) {
				t.Errorf("got %q, error %v; want %q", got, err, tt.want)
			}
		})
	}
}

// numbers returns "01" to n.
func numbers(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("%02d", i+1))
	}
	return all
}

// The requester pays for every request if the URL has the option for it. Without the option, the message names it.
func TestRequesterPays(t *testing.T) {
	s := newOddStore(t)
	etag := fmt.Sprintf(`"%032x-2"`, 1)
	for _, key := range []string{"a", "b"} {
		s.put(key, oddObject{data: "same", listETag: etag, getETag: etag, checksum: "c"})
	}
	store := s.Config.Handler
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("x-amz-request-payer") != "requester" {
			fail(w, 403, "AccessDenied", "Access Denied")
			return
		}
		store.ServeHTTP(w, r)
	})
	b := openURL(t, "s3://bucket?requester_pays=true&endpoint="+s.URL)
	infos := infosOf(t, b)
	o, err := b.OpenVersion(t.Context(), "a", infos["a"])
	if err != nil {
		t.Fatal(err)
	}
	if got, err := readAll(o); err != nil || string(got) != "same" {
		t.Errorf("read %q, error %v", got, err)
	}
	if !b.HaveSameContent(t.Context(), [2]string{"a", "b"}, [2]drivers.Info{infos["a"], infos["b"]}) {
		t.Error("two objects with equal checksums differ")
	}
	refuse(t, "s3://bucket?endpoint="+s.URL, "requester_pays=true")

	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"access_token":"token","token_type":"Bearer","expires_in":3600}`)
	}))
	t.Cleanup(tokens.Close)
	applicationDefault(t, tokens.URL)
	c := newCloud(t, 1000)
	c.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		isList := strings.HasPrefix(r.URL.Path, "/storage/v1/b/")
		switch {
		case isList && r.URL.Query().Get("userProject") == "vision", !isList && r.Header.Get("X-Goog-User-Project") == "vision":
			c.ServeHTTP(w, r)
		case isList:
			w.WriteHeader(400)
			io.WriteString(w, `{"error":{"code":400,"message":"Bucket is a requester pays bucket but no user project provided.","errors":[{"domain":"global","reason":"required"}]}}`)
		default:
			fail(w, 400, "UserProjectMissing", "Bucket is a requester pays bucket but no user project provided.")
		}
	})
	_, o = c.open(t, "&billing_project=vision")
	if got, err := readAll(o); err != nil || !bytes.Equal(got, c.data) {
		t.Errorf("read %d bytes, error %v", len(got), err)
	}
	refuse(t, "gs://bucket?endpoint="+c.URL, "give the URL the option billing_project=,")
	refuse(t, "gs://bucket?anonymous=true&endpoint="+c.URL, "billing_project= in place of anonymous=true")
}

// refuse checks that the bucket at url cannot be opened: access is denied, and the message tells the user remedy.
func refuse(t *testing.T, url, remedy string) {
	t.Helper()
	l, err := Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), l, nil); !errors.Is(err, syscall.EACCES) || !strings.Contains(Remedy(err), remedy) {
		t.Errorf("%s: got error %v, remedy %q; want %q", url, err, Remedy(err), remedy)
	}
}
