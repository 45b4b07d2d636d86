package page

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// hosts are the names by which browsers may reach the page. A foreign page can make a browser connect
// to this machine under a name of its own (DNS rebinding), and would then read the data as its own.
// The browser sends that name in the Host header. An IP address is no name that anybody can point
// elsewhere.
type hosts []string

// newHosts returns the hosts of a server that listens on an address: localhost, the host in the
// address, and the host name of the machine. A host name with a domain counts without it too; a
// domain is not added to one without, because anybody may own the result.
func newHosts(listen string) hosts {
	h := hosts{"localhost"}
	if host, _, err := net.SplitHostPort(listen); err == nil && host != "" {
		h = append(h, canonical(host))
	}
	if name, err := os.Hostname(); err == nil && name != "" {
		name = canonical(name)
		short, _, _ := strings.Cut(name, ".")
		h = append(h, name, short)
	}
	return h
}

// only refuses requests with other hosts.
func (h hosts) only(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !h.allow(r.Host) {
			http.Error(w, fmt.Sprintf("This page is not served under the name %.100q: open it by an IP address, such as http://127.0.0.1:PORT/, or set metrics.listen to that name.", r.Host),
				http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// allow reports whether header, a Host header, is an IP address or one of h, with any port.
func (h hosts) allow(header string) bool {
	host, ok := splitHost(header)
	if !ok {
		return false
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return slices.Contains(h, host)
}

// splitHost returns the host of a Host header, in canonical form, without brackets. ok is false if the
// header is malformed.
func splitHost(header string) (host string, ok bool) {
	host, port := header, ""
	if i := strings.LastIndexByte(header, ':'); i >= 0 && !strings.HasSuffix(header, "]") {
		if host, port = header[:i], header[i+1:]; port != "" {
			if _, err := strconv.ParseUint(port, 10, 16); err != nil {
				return "", false
			}
		}
	}
	if inside, bracketed := strings.CutPrefix(host, "["); bracketed {
		host, ok = strings.CutSuffix(inside, "]")
		a, err := netip.ParseAddr(host)
		return host, ok && err == nil && a.Is6()
	}
	host = canonical(host)
	return host, host != "" && !strings.ContainsAny(host, ":[]/@")
}

// canonical returns a name in lower case, without the dot that ends an absolute name.
func canonical(name string) string {
	return strings.ToLower(strings.TrimSuffix(name, "."))
}
